"""The column `block.ranges`: where a purge deleted rows, or what a cut leaves. NULL for a segment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from strandline.core.errors import LedgerUnreadable
from strandline.core.sites.replication import TakeoverCut
from strandline.core.types import Seq, SeqRange


def of_purge(ranges: Iterable[SeqRange]) -> str:
    return json.dumps(_pairs(ranges))


def of_cut(cut: TakeoverCut) -> str:
    document = {"above": int(cut.above), "keeps": _pairs(cut.keeps), "term": cut.term, "replaces": cut.replaces}
    return json.dumps(document)


def of_item(ranges: Iterable[SeqRange], cut: TakeoverCut | None) -> str:
    return of_purge(ranges) if cut is None else of_cut(cut)


def read(text: str | None) -> tuple[tuple[SeqRange, ...], TakeoverCut | None]:
    """The ranges of a purge, and the cut: one of them, or none for a segment. Raises LedgerUnreadable."""
    if text is None:
        return (), None
    try:
        document = json.loads(text)
        if isinstance(document, dict):
            replaces = document.get("replaces")
            kept, term = _ranges(document["keeps"]), int(document["term"])
            return (), TakeoverCut(term, Seq(int(document["above"])), kept, None if replaces is None else int(replaces))
        return _ranges(document), None
    except (KeyError, TypeError, ValueError) as e:
        raise LedgerUnreadable(f"the ranges of a block cannot be read: {text[:100]!r}") from e


def _pairs(ranges: Iterable[SeqRange]) -> list[list[int]]:
    return [[int(r.lo), int(r.hi)] for r in ranges]


def _ranges(pairs: Sequence[Sequence[int]]) -> tuple[SeqRange, ...]:
    return tuple(SeqRange(Seq(int(lo)), Seq(int(hi))) for lo, hi in pairs)
