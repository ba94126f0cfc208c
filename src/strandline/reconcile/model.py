"""The reconciler's vocabulary: the values that listing, references, diff and guards pass to the sweep.

Paths are canonical everywhere (`paths.py`): one spelling per file, the only one that is ever compared.

    gate → list storage → read references → compare → guard → act in batches → record
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from strandline.core.records.reconcile_records import (
    AbortReason,
    Counts,
    Done,
    FindingKind,
    ReconcileRunId,
    StorageKind,
)
from strandline.core.types import Seq, SeqRange
from strandline.storage.cross_device_move import Stat

__all__ = ["AbortReason", "Counts", "Done", "FindingKind", "ReconcileRunId", "Stat", "StorageKind"]


class FileContent(StrEnum):
    """What a file is to its table."""

    DATA = "data"
    POSITION_DELETES = "position_deletes"
    EQUALITY_DELETES = "equality_deletes"
    DELETION_VECTOR = "deletion_vector"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest_list"
    METADATA = "metadata"
    STATISTICS = "statistics"
    SPOOL = "spool"
    UNKNOWN = "unknown"


class Protection(StrEnum):
    """Why a finding is not acted on, in a word and in `words`. The first one that applies is reported."""

    _value_: str
    words: str

    def __new__(cls, value: str, words: str) -> Protection:
        made = str.__new__(cls, value)
        made._value_, made.words = value, words
        return made

    # Also if the table's identity is off by one bit. Nothing happens until a person says what is right.
    DAMAGED = "damaged", "probably the file of a damaged entry, or such an entry"
    TABLE_UNREAD = "table_unread", "not all references of the table could be read"
    PREFIX_FAILED = "prefix_failed", "the listing there is not complete"
    OVERLAP = "overlap", "another table's location overlaps, or may"
    SPELLING = "spelling", "storage shows files of the table under other names"
    REFERENCES_EMPTY = "references_empty", "the table references nothing, and has files"
    REFERENCES_SHRUNK = "references_shrunk", "the table references far less than last time"
    # or it lacks what was published: an older copy of the catalog
    ROLLED_BACK = "rolled_back", "the table's metadata is older than at the last run"
    # One of the entries may mean this file: in a run that finds such entries, no orphan file of the table is touched.
    ENTRIES_MISSING = "entries_missing", "files of the table are missing: one of its paths may be wrong"
    # the storage is away, not the files
    NOTHING_LISTED = "nothing_listed", "nothing was listed of the whole table, or of all its data"
    # `<table>/data/**` and `<table>/metadata/**`; or a path has segments that no writer makes
    LAYOUT = "layout", "outside every table's layout"
    # The catalog may be the one that is wrong. Applies whatever the settings say.
    VANISHED_TABLE = "vanished_table", "beside the metadata of a table that the catalog does not know"
    UNKNOWN_ROOT = "unknown_root", "in a folder that no table owns"
    ORIGIN = "origin", "not known to be this machine's"  # on storage that is not shared
    UNSEALED = "unsealed", "not wholly at or below the seal"  # or its range is unknown; whatever its age
    # The ledger may have been restored from an older copy: the sender may have got a 202.
    ACKNOWLEDGED = "acknowledged", "a received body that the ledger does not know; a receiver records it"
    NO_TIME = "no_time", "has no modification time"
    FUTURE_TIME = "future_time", "modified in the future"
    YOUNG = "young", "younger than the grace window"
    OPEN_BLOCK = "open_block", "not older than the oldest open block"
    OPEN_JOB = "open_job", "not older than the oldest maintenance job"
    UNDELIVERED = "undelivered", "some sink does not have the rows yet (--accept-loss)"
    NOT_DATA = "not_data", "not a data file: without it, rows would come back"
    NOT_IN_MAIN = "not_in_main", "only history, a branch or a tag has it"  # there is nothing to drop it from
    NOT_A_DATASET = "not_a_dataset", "a table that is not a dataset"  # its entries belong to its owner
    SHARED_FILE = "shared_file", "more than one table references it"


class Phase(StrEnum):
    SETTLE = "settle"
    LIST = "list"
    REFERENCES = "references"
    COMPARE = "compare"
    MISSING = "missing"
    ORPHANS = "orphans"


@dataclass(frozen=True, slots=True)
class PrefixFailure:
    """A prefix whose listing is incomplete. Nothing under it is touched."""

    prefix: str
    why: str
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Lineage:
    """How far a table has come."""

    sequence: int | None  # Iceberg's sequence number of its newest snapshot, on any branch; None in format version 1
    updated_ns: int
    main: int | None
    parents: Mapping[int, int | None]  # of every snapshot that is kept
    # The highest sequence number that a kept snapshot has: later runs compare with this one. The number in `sequence`
    # alone may have a flipped bit, and would count as the table's age forever.
    proven: int | None = None

    def contains(self, snapshot: int) -> bool | None:
        """Whether main descends from the snapshot; None if history was expired and nothing tells."""
        main = list(self._ancestors(self.main))
        if snapshot in main:
            return True
        is_whole = not main or self.parents[main[-1]] is None
        return False if is_whole or not set(main).isdisjoint(self._ancestors(snapshot)) else None

    def _ancestors(self, of: int | None) -> Iterator[int]:
        while of is not None and of in self.parents:
            yield of
            of = self.parents[of]


@dataclass(frozen=True, slots=True)
class TableHead:
    """A table at the moment when its references were read."""

    name: str
    uuid: str
    location: str
    metadata_location: str  # as long as the catalog says the same, the references are the same
    lineage: Lineage | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LastPublished:
    """A block that was published lately."""

    snapshot: int
    reserved_ns: int | None  # it was committed after this; None if the ledger learnt of it from the table


@dataclass(frozen=True, slots=True)
class TableSeal:
    """What the ledger says about a dataset. Read before the table."""

    table: str
    sealed: Seq | None
    # each active sink, and the sequence number up to which it certainly holds every row it should
    holds: Mapping[str, Seq | None] = field(default_factory=dict)
    published: Sequence[LastPublished] = ()
    uuid: str | None = None  # of the dataset's table


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """What the guards judge by; fixed when a run begins, before storage is listed."""

    now_ns: int
    grace_seconds: int
    clock_skew_seconds: int
    oldest_open_block_ns: int | None = None
    oldest_job_ns: int | None = None
    # by table name; other tables are not datasets of this lake
    seals: Mapping[str, TableSeal] = field(default_factory=dict)
    # by table uuid: how many referenced data and delete files the last run found that read the table completely
    contents_before: Mapping[str, int] = field(default_factory=dict)
    # by table uuid: the highest Iceberg sequence number that any run saw
    sequences_before: Mapping[str, int] = field(default_factory=dict)
    clock: Mapping[str, Any] | None = None  # what to remember about the clock of this run
    spooled: frozenset[str] = frozenset()  # canonical paths of spool files that the ledger has a record of
    spool_tables: frozenset[str] = frozenset()  # the table uuids of the lake's datasets
    accept_loss: bool = False
    delete_foreign: bool = False
    suspected: frozenset[str] = frozenset()  # canonical paths of files that are probably those of damaged entries
    # False on local storage that other machines may not share. Then runs act on files if the whole table is here, and
    # never on entries, because their files may be on another machine.
    own_origin: bool = True

    @property
    def young_after_ns(self) -> int:
        """A file modified later is young; one modified exactly then is old enough."""
        return self.now_ns - (self.grace_seconds + self.clock_skew_seconds) * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    path: str
    table: str | None
    size: int | None
    modified_ns: int | None  # of a missing file: the latest time at which its entry was added
    protected: Protection | None
    content: FileContent = FileContent.UNKNOWN
    partition: str | None = None
    rows: SeqRange | None = None
    row_count: int | None = None
    delivered_to: tuple[str, ...] = ()
    undelivered_to: tuple[str, ...] = ()
    # a missing file of which the quarantine has a copy: it is brought back, and its entry stays
    in_quarantine: bool = False
    # Of an orphan file: the path in the damaged entry that it probably belongs to. Of a missing file: that orphan file.
    probably: str | None = None

    @property
    def order(self) -> tuple[str, str, str]:
        return (self.kind.value, self.table or "", self.path)

    @property
    def listed(self) -> Stat | None:
        return None if self.size is None else Stat(self.size, self.modified_ns)


@dataclass(frozen=True, slots=True)
class TableFacts:
    head: TableHead
    contents: int  # how many data and delete files it references
    stopped: Protection | None  # why nothing of it is touched


@dataclass(frozen=True, slots=True)
class Move:
    path: str
    to: str
    expected: Stat


class Storage(Protocol):
    """Storage as the sweep acts on it. A problem with one file is reported for that file, and stops no others."""

    @property
    def kind(self) -> StorageKind: ...

    def find_file(self, path: str) -> Stat | None:
        """Raises `StorageError` if it is unknown whether the file exists."""

    def same(self, listed: Stat, now: Stat) -> bool:
        """As exactly as the times of this storage allow."""

    def set_aside(self, files: Sequence[Move]) -> Mapping[str, str | None]:
        """Moves files to new places. By path: None, or why the file stayed. A file that is not as expected stays."""

    def bring_back(self, kept_at: str, to: str) -> bool:
        """Never overwrites: False if there is a file at `to`, or none at `kept_at`."""

    def delete(self, paths: Sequence[str]) -> Mapping[str, str]:
        """What could not be deleted, and why. A file that does not exist counts as deleted."""

    def same_content(self, one: str, other: str) -> bool:
        """Whether both exist and have the same bytes. Raises `StorageError` if that is unknown."""

    def tail(self, path: str, count: int) -> bytes:
        """The last `count` bytes of the file, or all of a shorter one. Raises `StorageError`."""

    def files_under(self, folder: str) -> Iterator[str]:
        """All files below a folder, recursively; none if it does not exist. Raises `StorageError` if incomplete."""


class Watch(Protocol):
    """Follows a run while it works."""

    def phase(self, phase: Phase) -> None:
        """A new step begins."""

    def advance(self, more: int) -> None:
        """So much more of the step is done. May be called often: it reports only now and then."""

    def check(self) -> None:
        """Raises if the run must end: cancelled, out of time, or its lease lost."""
