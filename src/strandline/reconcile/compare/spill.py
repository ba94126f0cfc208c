"""Keeps findings in files instead of memory, for lakes that may have tens of millions of them."""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.core.types import Seq, SeqRange
from strandline.reconcile.compare.findings import FactsOf, Judged, first_of_each, orphan_finding
from strandline.reconcile.model import Content, Counts, Finding, FindingKind, Protection, TableFacts
from strandline.reconcile.storage.worker import read_frame, write_frame

SORTED_AT_ONCE = 50_000
_READ_AT_ONCE = 500


class Spill:
    """Findings in sorted files, read as one sorted sequence. The files are deleted with the object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="strandline-reconcile-")
        self._waiting: list[Finding] = []
        self._files: list[Path] = []

    def add(self, finding: Finding) -> None:
        self._waiting.append(finding)
        if len(self._waiting) == SORTED_AT_ONCE:
            self.end()

    def end(self) -> None:
        if not self._waiting:
            return
        self._waiting.sort(key=_order)
        self._files.append(Path(self._folder.name, str(len(self._files))))
        with self._files[-1].open("wb") as file:
            for at in range(0, len(self._waiting), _READ_AT_ONCE):
                write_frame(file, [_values(finding) for finding in self._waiting[at : at + _READ_AT_ONCE]])
        self._waiting = []

    def __iter__(self) -> Iterator[Finding]:
        return heapq.merge(*map(_read, self._files), key=_order)


@dataclass(frozen=True, slots=True)
class SpilledDrift:
    found: Counts
    planned: Counts
    protected: Mapping[Protection, int]
    tables: Sequence[TableFacts]
    listed: int
    _missing: Spill
    _orphans: Spill

    def missing(self) -> Iterator[Finding]:
        return iter(self._missing)

    def orphans(self) -> Iterator[Finding]:
        return iter(self._orphans)

    def first_orphans(self, count: int) -> Iterator[Finding]:
        return first_of_each(self._orphans, count, lambda finding: (finding.kind, finding.protected is None))


class _Counting:
    def __init__(self) -> None:
        self.kinds: Counter[FindingKind] = Counter()
        self.bytes = 0

    def add(self, finding: Finding) -> None:
        self.kinds[finding.kind] += 1
        if finding.kind is not FindingKind.MISSING:
            self.bytes += finding.size or 0

    def counts(self) -> Counts:
        kinds = self.kinds
        return Counts(
            kinds[FindingKind.MISSING],
            kinds[FindingKind.ORPHAN],
            kinds[FindingKind.FOREIGN],
            self.bytes,
            kinds[FindingKind.SUPERSEDED],
        )


def spilled(missing: Iterable[Finding], orphans: Iterable[Judged], facts: FactsOf, listed: int) -> SpilledDrift:
    found, planned = _Counting(), _Counting()
    protected: Counter[Protection] = Counter()
    gone: Counter[str | None] = Counter()
    stray: Counter[str | None] = Counter()

    def kept(findings: Iterable[Finding], by_table: Counter[str | None]) -> Spill:
        spill = Spill()
        for finding in findings:
            spill.add(finding)
            found.add(finding)
            by_table[finding.table] += 1
            if finding.protected is None:
                planned.add(finding)
            else:
                protected[finding.protected] += 1
        spill.end()
        return spill

    missing_files = kept(missing, gone)
    orphan_files = kept(map(orphan_finding, orphans), stray)
    return SpilledDrift(
        found.counts(),
        planned.counts(),
        {protection: protected[protection] for protection in Protection if protected[protection]},
        facts(gone, stray),
        listed,
        missing_files,
        orphan_files,
    )


def _order(finding: Finding) -> tuple[str, str, str]:
    return finding.order


def _read(path: Path) -> Iterator[Finding]:
    with path.open("rb") as file:
        while (some := read_frame(file)) is not None:
            yield from map(_finding, some)


def _values(finding: Finding) -> tuple[Any, ...]:
    rows = finding.rows
    return (
        finding.kind.value, finding.path, finding.table, finding.size, finding.modified_ns,
        None if finding.protected is None else finding.protected.value, finding.content.value, finding.partition,
        None if rows is None else (rows.lo, rows.hi), finding.row_count, finding.delivered_to, finding.undelivered_to,
    )  # fmt: skip


def _finding(values: tuple[Any, ...]) -> Finding:
    kind, path, table, size, modified_ns, protected, content, partition, rows, row_count, held, lacking = values
    return Finding(
        FindingKind(kind),
        path,
        table,
        size,
        modified_ns,
        None if protected is None else Protection(protected),
        Content(content),
        partition,
        None if rows is None else SeqRange(Seq(rows[0]), Seq(rows[1])),
        row_count,
        tuple(held),
        tuple(lacking),
    )
