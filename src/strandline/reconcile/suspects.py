"""Finds orphan files that are probably the files of missing entries: the path of such an entry is damaged, and the file
is live.

An orphan file is suspected if it has the size of a missing entry of its table, or if its footer agrees with one: their
sequence numbers overlap, or, if one of them has none, their row counts are equal. A suspected file is not swept, and
the entry is not dropped, until a person says that the file is an orphan. A suspicion stays on record even after its
entry is gone.

Metadata files are not suspected: no entry means one. Neither is a file whose matching entry is gone when the table is
read again: then somebody removed both, the entry and its file, during the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import Suspect
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.parquet_rows import footer_bounds
from strandline.ledger.reconcile import suspect_files
from strandline.reconcile.compare.compared import Survey
from strandline.reconcile.context import SweepContext
from strandline.reconcile.model import Finding, FindingKind, Protection, Watch
from strandline.reconcile.paths import is_metadata_file
from strandline.reconcile.quarantine_lookup import STORAGE_AWAY, QuarantineLookup

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FOOTERS_MAX = 10_000  # read in one run; orphan files beyond this are compared by size alone
RECORDED_MAX = 100_000  # in one run; while the entries are missing, orphan files of the table are left alone anyway
_AT_ONCE = 256
_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
_FIRST_BYTES = 64 << 10
_FOOTER_BYTES_MAX = 64 << 20


@dataclass(slots=True)
class Suspects:
    # by the path of the orphan file: the path of an entry that it probably belongs to
    files: dict[str, str] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)  # the other way round
    # what else protects these orphan files and entries, and how many
    before: Counter[Protection | None] = field(default_factory=Counter)
    # tables with an orphan file that could not be read, and why: none of their entries is dropped
    unreadable: dict[str, str] = field(default_factory=dict)

    def protects(self, entry: Finding) -> bool:
        return entry.path in self.entries or entry.table in self.unreadable

    def marked(self, finding: Finding) -> Finding:
        """The finding as it is reported."""
        if finding.kind is FindingKind.MISSING:
            is_suspect, probably = self.protects(finding), self.entries.get(finding.path)
        else:
            is_suspect, probably = finding.path in self.files, self.files.get(finding.path)
        return replace(finding, protected=Protection.DAMAGED, probably=probably) if is_suspect else finding


class MissingEntries:
    """The missing entries of one table, indexed so that an orphan file can be compared with all of them at once."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[str]] = {}
        self._by_count: dict[int, list[str]] = {}
        self._ranged: list[tuple[int, int, str]] = []
        self._unnumbered: dict[int, list[str]] = {}  # those without sequence numbers, by row count
        self._highest_ends: list[int] | None = None

    def add(self, entry: Finding) -> None:
        if entry.size is not None:
            self._by_size.setdefault(entry.size, []).append(entry.path)
        if entry.rows is not None:
            self._ranged.append((entry.rows.lo, entry.rows.hi, entry.path))
        if entry.row_count is not None:
            self._by_count.setdefault(entry.row_count, []).append(entry.path)
            if entry.rows is None:
                self._unnumbered.setdefault(entry.row_count, []).append(entry.path)

    def of_size(self, size: int | None) -> Sequence[str]:
        return () if size is None else self._by_size.get(size, ())

    def agreeing(self, footer: Footer) -> Sequence[str]:
        if footer.rows is None:
            return self._by_count.get(footer.row_count, ())
        unnumbered = self._unnumbered.get(footer.row_count, ())
        return [*self._overlapping(footer.rows.lo, footer.rows.hi), *unnumbered]

    def _overlapping(self, lo: int, hi: int) -> Iterator[str]:
        if self._highest_ends is None:
            self._ranged.sort()
            self._highest_ends = list(accumulate((end for _, end, _ in self._ranged), max))
        at = bisect_right(self._ranged, hi, key=lambda entry: entry[0])
        # Backwards, until everything before ends below `lo`.
        while at > 0 and self._highest_ends[at - 1] >= lo:
            at -= 1
            if self._ranged[at][1] >= lo:
                yield self._ranged[at][2]


def find_suspects(context: SweepContext, survey: Survey, quarantined: QuarantineLookup, watch: Watch) -> Suspects:
    """Also records them, and forgets those that a table references again."""
    known = context.ledger.query(suspect_files.list_suspects)
    again = survey.references.referenced([suspect.path for suspect in known])
    released = {suspect.path for suspect in known if suspect.released}
    found = Suspects({s.path: s.entry for s in known if not s.released and s.path not in again})
    missing = _missing(survey, quarantined)
    tables: dict[str, str] = {}
    if missing:
        orphans = (
            f
            for f in survey.drift.orphans()
            if f.table in missing and f.path not in released and not is_metadata_file(f.path)
        )
        matched = list(_matched(context, orphans, missing, found, watch.check))
        for finding, entries in _still_missing(context, survey, matched, watch):
            found.files[finding.path] = entries[0]
            found.entries |= dict.fromkeys(entries, finding.path)
            found.before[finding.protected] += 1
            tables[finding.path] = finding.table or ""
        found.before.update(f.protected for f in survey.drift.missing() if found.protects(f))
    new = [Suspect(path, table, found.files[path], False) for path, table in islice(tables.items(), RECORDED_MAX)]
    if again or new:
        with context.ledger.write() as connection:
            suspect_files.forget(connection, again)
            suspect_files.record(connection, new)
    return found


def _missing(survey: Survey, quarantined: QuarantineLookup) -> dict[str, MissingEntries]:
    """By table. A file that is only in quarantine is not missing, and its path is right."""
    found: dict[str, MissingEntries] = {}
    for finding in survey.drift.missing():
        if finding.protected in STORAGE_AWAY or finding.path in quarantined.files or finding.table is None:
            continue
        if finding.size is not None or finding.row_count is not None:
            found.setdefault(finding.table, MissingEntries()).add(finding)
    return found


def _still_missing(
    context: SweepContext, survey: Survey, matched: Sequence[tuple[Finding, Sequence[str]]], watch: Watch
) -> Iterator[tuple[Finding, Sequence[str]]]:
    """Those whose table still has the entry, or cannot be read now."""
    if not matched:
        return
    now = context.surveyor.references(survey.references, watch)
    live = now.referenced({path for _, entries in matched for path in entries})
    for finding, entries in matched:
        still = entries if finding.table in now.unread else [path for path in entries if path in live]
        if still:
            yield finding, still


def _matched(
    context: SweepContext,
    orphans: Iterator[Finding],
    missing: dict[str, MissingEntries],
    found: Suspects,
    check: Callable[[], None],
) -> Iterator[tuple[Finding, Sequence[str]]]:
    read = 0
    with ThreadPoolExecutor(context.settings.recheck_concurrency, thread_name_prefix="footer") as threads:
        while some := list(islice(orphans, _AT_ONCE)):
            check()
            unlike: list[Finding] = []
            for finding in some:
                entries = missing[finding.table or ""].of_size(finding.size)
                if entries:
                    yield finding, entries
                elif finding.size:
                    unlike.append(finding)
            wanted = unlike[: FOOTERS_MAX - read]
            read += len(wanted)
            for finding, footer in zip(wanted, threads.map(lambda f: _footer(context, f), wanted), strict=True):
                if isinstance(footer, StorageError):
                    found.unreadable.setdefault(finding.table or "", footer.message)
                elif footer is not None and (entries := missing[finding.table or ""].agreeing(footer)):
                    yield finding, entries


def _footer(context: SweepContext, finding: Finding) -> Footer | StorageError | None:
    try:
        return read_footer(lambda count: context.storage.tail(finding.path, count), finding.size or 0)
    except StorageError as e:
        return e


@dataclass(frozen=True, slots=True)
class Footer:
    row_count: int
    rows: SeqRange | None  # None if the footer does not say, or rows lack a sequence number


def read_footer(tail: Callable[[int], bytes], size: int) -> Footer | None:
    """None if it is not a readable Parquet file. `tail` returns so many bytes from the end of the file."""
    end = tail(min(size, _FIRST_BYTES))
    if len(end) < _TRAILER_BYTES or end[-4:] != _MAGIC:
        return None
    needed = int.from_bytes(end[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
    if needed > min(size, _FOOTER_BYTES_MAX):
        return None
    if needed > len(end):
        end = tail(needed)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_metadata(pa.BufferReader(end))
        return Footer(found.num_rows, _rows(found))
    except Exception:
        return None  # untrusted bytes may make the reader raise anything


def _rows(footer: pq.FileMetaData) -> SeqRange | None:
    bounds = footer_bounds(footer)
    known = [found for found in bounds if found is not None]
    if not known or len(known) < len(bounds):
        return None
    lo, hi = min(lo for lo, _ in known), max(hi for _, hi in known)
    return SeqRange(Seq(lo), Seq(hi)) if 1 <= lo <= hi else None
