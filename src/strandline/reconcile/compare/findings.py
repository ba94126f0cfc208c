"""The judged findings of one comparison. Orphans are plain tuples, converted on demand: a lake may have a million."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from strandline.reconcile.model import Counts, FileContent, Finding, FindingKind, Protection, TableFacts

# kind, path, table, size, time, protection, content
Judged = tuple[FindingKind, str, str | None, int | None, int | None, Protection | None, FileContent]
SortKey = Callable[[Any], tuple[str, str, str]]
Store = Callable[[Iterable[Any], SortKey], Iterable[Any]]  # sorts findings; the result can be iterated repeatedly


@dataclass(frozen=True, slots=True)
class Drift:
    """One comparison of storage and references, every finding judged. It can be iterated again, in `Finding.order`."""

    found: Counts  # everything, protected or not
    planned: Counts  # what is not protected
    protected: Mapping[Protection, int]
    tables: Sequence[TableFacts]
    listed: int
    _missing: Iterable[Finding]
    _orphans: Iterable[Judged]

    def missing(self) -> Iterator[Finding]:
        return iter(self._missing)

    def orphans(self) -> Iterator[Finding]:
        """All findings that are not missing files."""
        return map(orphan_finding, self._orphans)

    def first_orphans(self, count: int) -> Iterator[Finding]:
        """Of each kind, so many that can be acted on and so many that are protected."""
        seen: Counter[tuple[FindingKind, bool]] = Counter()
        for judged in self._orphans:
            kind = judged[0], judged[5] is None
            if seen[kind] < count:
                seen[kind] += 1
                yield orphan_finding(judged)


def orphan_finding(judged: Judged) -> Finding:
    _, path, *_, content = judged
    return Finding(*judged, partition_of(path) if content is FileContent.DATA else None)


def partition_of(path: str) -> str | None:
    """The partition as the folders of a data file spell it: `day=2026-01-01/region=EU`. None if they name none."""
    if "=" not in path:
        return None
    named: list[str] = []
    for segment in reversed(path.split("/")[:-1]):
        if segment.find("=") < 1:
            break
        named.append(segment)
    return "/".join(reversed(named)) or None


class _Counters:
    """Per kind and protection: how many files, and their bytes (0 for missing ones)."""

    def __init__(self) -> None:
        self._found: dict[tuple[FindingKind, Protection | None], list[int]] = {}

    def missing(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        for finding in findings:
            self._count((finding.kind, finding.protected), 0)
            yield finding

    def orphans(self, files: Iterable[Judged]) -> Iterator[Judged]:
        for judged in files:
            self._count((judged[0], judged[5]), judged[3] or 0)
            yield judged

    def _count(self, of: tuple[FindingKind, Protection | None], size: int) -> None:
        known = self._found.get(of)  # once per file: hashing an enum takes time
        if known is None:
            known = self._found[of] = [0, 0]
        known[0] += 1
        known[1] += size

    def counts(self, protections: Iterable[Protection | None]) -> Counts:
        kinds: Counter[FindingKind] = Counter()
        size = 0
        for protection in protections:
            for kind in FindingKind:
                count, of_kind = self._found.get((kind, protection), (0, 0))
                kinds[kind] += count
                size += of_kind
        return Counts(
            kinds[FindingKind.MISSING],
            kinds[FindingKind.ORPHAN],
            kinds[FindingKind.FOREIGN],
            size,
            kinds[FindingKind.SUPERSEDED],
        )


def in_memory(findings: Iterable[Any], order: SortKey) -> list[Any]:
    return sorted(findings, key=order)


def gathered(
    missing: Iterable[Finding],
    orphans: Iterable[Judged],
    facts: Callable[[], Sequence[TableFacts]],
    listed: int,
    store: Store,
) -> Drift:
    """Consumes missing files before the others, and calls `facts` after both: what they show decides about the rest."""
    counters = _Counters()
    gone = store(counters.missing(missing), lambda finding: finding.order)
    stray = store(counters.orphans(orphans), lambda judged: (judged[0].value, judged[2] or "", judged[1]))
    protected = {reason: counters.counts([reason]).total for reason in Protection}
    return Drift(
        counters.counts([None, *Protection]),
        counters.counts([None]),
        {reason: count for reason, count in protected.items() if count},
        facts(),
        listed,
        gone,
        stray,
    )


SORTED_AT_ONCE = 50_000
_READ_AT_ONCE = 500


class Spill:
    """A `Store` in files, for lakes that may have tens of millions of findings: sorted files, read as one sorted
    sequence. The files are deleted with the object."""

    def __init__(self, values: Iterable[Any], order: SortKey) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="strandline-reconcile-")
        self._order = order
        self._files: list[Path] = []
        waiting = iter(values)
        while some := sorted(islice(waiting, SORTED_AT_ONCE), key=order):
            self._files.append(Path(self._folder.name, str(len(self._files))))
            with self._files[-1].open("wb") as file:
                for at in range(0, len(some), _READ_AT_ONCE):
                    pickle.dump(some[at : at + _READ_AT_ONCE], file, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[Any]:
        return heapq.merge(*map(_read, self._files), key=self._order)


def _read(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        while True:
            try:
                yield from pickle.load(file)
            except EOFError:
                return
