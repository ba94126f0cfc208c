"""The judged findings of one comparison, stored as plain tuples and converted on demand: a lake may have a million."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strandline.reconcile.model import Content, Counts, Drift, Finding, FindingKind, Protection, TableFacts

# kind, path, table, size, time, protection, content
Judged = tuple[FindingKind, str, str | None, int | None, int | None, Protection | None, Content]


@dataclass(frozen=True, slots=True)
class InMemoryDrift:
    found: Counts
    planned: Counts
    protected: Mapping[Protection, int]
    tables: Sequence[TableFacts]
    listed: int
    _missing: Sequence[Finding]
    _orphans: Sequence[Judged]

    def missing(self) -> Iterator[Finding]:
        return iter(self._missing)

    def orphans(self) -> Iterator[Finding]:
        return map(orphan_finding, self._orphans)

    def first_orphans(self, count: int) -> Iterator[Finding]:
        chosen = first_of_each(self._orphans, count, lambda judged: (judged[0], judged[5] is None))
        return map(orphan_finding, chosen)


T = TypeVar("T")


def first_of_each(values: Iterable[T], count: int, kind_of: Callable[[T], Hashable]) -> Iterator[T]:
    seen: Counter[Hashable] = Counter()
    for value in values:
        kind = kind_of(value)
        if seen[kind] < count:
            seen[kind] += 1
            yield value


def orphan_finding(judged: Judged) -> Finding:
    _, path, *_, content = judged
    return Finding(*judged, partition_of(path) if content is Content.DATA else None)


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


# takes the counts of missing and of unreferenced files, by table
FactsOf = Callable[[Mapping[str | None, int], Mapping[str | None, int]], Sequence[TableFacts]]
# consumes missing files before the others: what they show decides about those
Gather = Callable[[Iterable[Finding], Iterable[Judged], FactsOf, int], Drift]


def gathered(missing: Iterable[Finding], orphans: Iterable[Judged], facts: FactsOf, listed: int) -> InMemoryDrift:
    gone = sorted(missing, key=lambda finding: finding.order)
    ordered = sorted(orphans, key=lambda j: (j[0].value, j[2] or "", j[1]))
    protected = Counter(f.protected for f in gone if f.protected is not None)
    protected.update(j[5] for j in ordered if j[5] is not None)
    return InMemoryDrift(
        _counts(gone, ordered),
        _counts([f for f in gone if f.protected is None], [j for j in ordered if j[5] is None]),
        {protection: protected[protection] for protection in Protection if protected[protection]},
        facts(Counter(f.table for f in gone), Counter(j[2] for j in ordered)),
        listed,
        gone,
        ordered,
    )


def _counts(missing: Sequence[Finding], orphans: Sequence[Judged]) -> Counts:
    kinds = Counter(j[0] for j in orphans)
    return Counts(
        len(missing),
        kinds[FindingKind.ORPHAN],
        kinds[FindingKind.FOREIGN],
        sum(j[3] or 0 for j in orphans),
        kinds[FindingKind.SUPERSEDED],
    )
