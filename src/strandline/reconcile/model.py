"""The words of the reconciler, as values: what listing, references, diff and guards hand to the sweep.

Paths are canonical everywhere (`paths.py`): one spelling per file, the only one that is ever compared.

    gate → list storage → read references → compare → guard → act in batches → record
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from strandline.core.reconcile_records import AbortReason, Counts, Done, FindingKind, RunId, StorageKind
from strandline.core.types import Seq, SeqRange

__all__ = ["AbortReason", "Counts", "Done", "FindingKind", "RunId", "StorageKind"]


class Content(StrEnum):
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
    """Why a finding is not acted on. The order is that of precedence: the first that holds is the one that is told."""

    DAMAGED = "damaged"
    """Probably the file of an entry whose path is wrong, or an entry that probably means a file that is there; or the
    table's identity is off by one bit. The metadata is damaged: nothing happens until a person says what is right."""
    TABLE_UNREAD = "table_unread"
    """Its references could not all be read: what is unreferenced there is not known."""
    PREFIX_FAILED = "prefix_failed"
    """The listing of its prefix failed, was cut short or timed out."""
    OVERLAP = "overlap"
    """Another table's location contains this one's, or is contained in it; or may, where nobody can tell."""
    SPELLING = "spelling"
    """Files that it references are there and were not listed: storage shows them under other names."""
    REFERENCES_EMPTY = "references_empty"
    REFERENCES_SHRUNK = "references_shrunk"
    ROLLED_BACK = "rolled_back"
    """Its metadata is older than at the last run, or does not have what was published: an older copy of the catalog."""
    ENTRIES_MISSING = "entries_missing"
    """The table has entries whose file is missing. One of their paths may be wrong, and this may be the file that is
    meant: in a run that finds such entries, no orphan of the table is touched."""
    NOTHING_LISTED = "nothing_listed"
    """Of the whole table, or of all its data, nothing was listed: the storage is away, not the files."""
    LAYOUT = "layout"
    """Outside `<table>/data/**` and `<table>/metadata/**`, or a path with segments that no writer makes."""
    VANISHED_TABLE = "vanished_table"
    """In a folder that holds the metadata of a table, which the catalog does not know: the catalog may be the one that
    is wrong. Whatever the settings say."""
    UNKNOWN_ROOT = "unknown_root"
    """Under a folder or namespace that the catalog does not know."""
    ORIGIN = "origin"
    """On storage that is not shared: not provably written by this node."""
    UNSEALED = "unsealed"
    """The range of the entry is not wholly at or below the seal, or is not known; whatever its age."""
    ACKNOWLEDGED = "acknowledged"
    """A received body that the ledger does not know, perhaps because it was restored from an older copy: its sender may
    have been told that it is safe. A receiver records it."""
    NO_TIME = "no_time"
    FUTURE_TIME = "future_time"
    YOUNG = "young"
    OPEN_BLOCK = "open_block"
    """Not older than the oldest open block."""
    OPEN_JOB = "open_job"
    """Not older than the oldest registered maintenance job."""
    UNDELIVERED = "undelivered"
    """Not every active sink holds its rows, and `--accept-loss` was not given."""
    NOT_DATA = "not_data"
    """A missing delete file, deletion vector or manifest: dropping it would bring rows back."""
    NOT_IN_MAIN = "not_in_main"
    """Only history, a branch or a tag has the entry: there is nothing to drop it from."""
    NOT_A_DATASET = "not_a_dataset"
    """A table of the catalog that rows do not enter through this lake: its entries are its owner's."""
    SHARED_FILE = "shared_file"
    """More than one table references it."""


class Phase(StrEnum):
    SETTLE = "settle"
    LIST = "list"
    REFERENCES = "references"
    COMPARE = "compare"
    MISSING = "missing"
    ORPHANS = "orphans"


@dataclass(frozen=True, slots=True)
class Stat:
    """A file as it is right now: what a recheck compares with what was listed."""

    size: int
    modified_ns: int | None


@dataclass(frozen=True, slots=True)
class PrefixFailure:
    """A prefix whose listing is not complete. Nothing under it is touched."""

    prefix: str
    why: str
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Lineage:
    """How far a table has come."""

    sequence: int | None
    """Iceberg's number of its newest snapshot, on whatever branch; format version 1 has none."""
    updated_ns: int
    main: int | None
    parents: Mapping[int, int | None]
    """Of every snapshot that is kept."""
    proven: int | None = None
    """The highest number that a snapshot has which is kept: what a later look may be measured by. A number that stands
    alone may be a flipped bit, and would be taken for the table's age for ever."""

    def contains(self, snapshot: int) -> bool | None:
        """Whether main descends from it; None where history was cut off and nothing tells."""
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
    """A table as its references were read."""

    name: str
    uuid: str
    location: str
    metadata_location: str
    """As long as the catalog says the same, the references are the same."""
    lineage: Lineage | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LastPublished:
    """A block that was published lately."""

    snapshot: int
    reserved_ns: int | None
    """It was committed after this; None where the ledger learnt of it from the table."""


@dataclass(frozen=True, slots=True)
class TableSeal:
    """What the ledger says of a dataset. Read before its table is."""

    table: str
    sealed: Seq | None
    holds: Mapping[str, Seq | None] = field(default_factory=dict)
    """Each active sink, and up to where it certainly holds every row that it is to hold."""
    published: Sequence[LastPublished] = ()
    uuid: str | None = None
    """Of the table that is the dataset."""


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """What the guards judge by; fixed when a run begins, before storage is listed."""

    now_ns: int
    grace_seconds: int
    clock_skew_seconds: int
    oldest_open_block_ns: int | None = None
    oldest_job_ns: int | None = None
    seals: Mapping[str, TableSeal] = field(default_factory=dict)
    """By table name. A table that is not in it is not a dataset of this lake."""
    contents_before: Mapping[str, int] = field(default_factory=dict)
    """By table uuid: how many data and delete files the last run that read it whole found referenced."""
    sequences_before: Mapping[str, int] = field(default_factory=dict)
    """By table uuid: the highest sequence number of Iceberg's that any run saw."""
    clock: Mapping[str, Any] | None = None
    """What is to be remembered of the clock that this goes by."""
    spooled: frozenset[str] = frozenset()
    """Canonical paths of spool files that the ledger has a record of."""
    spool_tables: frozenset[str] = frozenset()
    """The uuids of the lake's datasets."""
    accept_loss: bool = False
    delete_foreign: bool = False
    suspected: frozenset[str] = frozenset()
    """Canonical paths of files that are probably those of damaged entries."""
    own_origin: bool = True
    """False on local storage that other machines may not share: then files are acted on where the whole table is here,
    and entries never, because their files may be on another machine."""

    @property
    def young_after_ns(self) -> int:
        """A file modified after this is young. One modified exactly then is old enough."""
        return self.now_ns - (self.grace_seconds + self.clock_skew_seconds) * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    path: str
    table: str | None
    size: int | None
    modified_ns: int | None
    """Of a missing file: when its entry was added at the latest."""
    protected: Protection | None
    content: Content = Content.UNKNOWN
    partition: str | None = None
    rows: SeqRange | None = None
    row_count: int | None = None
    delivered_to: tuple[str, ...] = ()
    undelivered_to: tuple[str, ...] = ()
    in_quarantine: bool = False
    """A missing file of which the quarantine has a copy: it is brought back, and its entry stays."""
    probably: str | None = None
    """Of an orphan: the path in a damaged entry that it is probably the file of. Of a missing file: that orphan."""

    @property
    def order(self) -> tuple[str, str, str]:
        return (self.kind.value, self.table or "", self.path)

    @property
    def listed(self) -> Stat | None:
        return None if self.size is None else Stat(self.size, self.modified_ns)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What was counted of one table: what its guards judge by."""

    head: TableHead
    listed: int
    referenced: int
    contents: int
    """Those of them that are data and delete files."""
    missing: int
    orphans: int
    contents_before: int | None
    stopped: Protection | None = None
    why: str | None = None


class Drift(Protocol):
    """One comparison of storage and references, every finding judged. Iterated as often as asked, always in the same
    order (`Finding.order`), without holding all files anywhere."""

    @property
    def found(self) -> Counts:
        """Everything, protected or not."""

    @property
    def planned(self) -> Counts:
        """What is not protected."""

    @property
    def protected(self) -> Mapping[Protection, int]: ...

    @property
    def tables(self) -> Sequence[TableFacts]: ...

    @property
    def listed(self) -> int: ...

    def missing(self) -> Iterator[Finding]: ...

    def orphans(self) -> Iterator[Finding]:
        """All that are not missing."""

    def first_orphans(self, count: int) -> Iterator[Finding]:
        """Of each kind so many that can be acted on, and so many that are protected."""


class References(Protocol):
    """What the catalog's tables reach, at one moment."""

    @property
    def tables(self) -> Sequence[TableHead]: ...

    @property
    def unread(self) -> Mapping[str, str]:
        """Tables of which not everything could be read, and why."""

    def __len__(self) -> int: ...

    def referenced(self, paths: Iterable[str]) -> set[str]:
        """Those of them that are reached."""


class Catalog(Protocol):
    """The catalog of record, as the sweep needs it. Failing to read it at all raises `StorageError`."""

    def references(self, known: References | None, watch: Watch) -> References:
        """As it is now; tables whose pointer did not move since `known` are not read again. One that cannot be read
        is in `unread`."""

    def drop_entries(
        self, table: str, paths: Sequence[str], *, token: str, summary: Mapping[str, str], last_word: Callable[[], None]
    ) -> int:
        """Remove the entries of data files from main in one commit, and say how many. Once for each token.
        `last_word` raises if it is not to be. `CommitUnknown` where the outcome cannot be told."""

    def dropped(self, table: str, token: str) -> int | None:
        """How many entries the commit of a batch removed, if it landed. Its token is void from then on: what was not
        committed cannot be any more."""

    def may_have(self, table: str, paths: Sequence[str]) -> bool:
        """False where main certainly has no entry of any of them."""


@dataclass(frozen=True, slots=True)
class Move:
    path: str
    to: str
    expected: Stat


class Storage(Protocol):
    """Storage as the sweep acts on it. What concerns one file is told of that file, and does not stop the others."""

    @property
    def kind(self) -> StorageKind: ...

    def look(self, path: str) -> Stat | None:
        """`StorageError` where it cannot be told whether there is such a file."""

    def same(self, listed: Stat, now: Stat) -> bool:
        """As exactly as the times of this storage tell."""

    def set_aside(self, files: Sequence[Move]) -> Mapping[str, str | None]:
        """Move files to places that are new. By path: None, or why it stayed. One that is not what was expected
        stays."""

    def bring_back(self, kept_at: str, to: str) -> bool:
        """Never over another file: False if there is one, or if nothing is kept there."""

    def delete(self, paths: Sequence[str]) -> Mapping[str, str]:
        """What could not be deleted, and why. What is not there counts as deleted."""

    def same_content(self, one: str, other: str) -> bool:
        """Whether both are there and hold the same bytes. `StorageError` where it cannot be told."""

    def tail(self, path: str, count: int) -> bytes:
        """So many bytes from the end of a file; all of it, if it has no more. `StorageError` where it cannot be
        read."""

    def files_under(self, folder: str) -> Iterator[str]:
        """Every file in a folder and below it; none where there is no such folder. `StorageError` where not all of them
        can be told."""


class Watch(Protocol):
    """Who looks after a run while it works."""

    def phase(self, phase: Phase) -> None:
        """A new step begins."""

    def progress(self, count: int) -> None:
        """So much of the step is done."""

    def advance(self, more: int) -> None:
        """So much more of it is done. May be said often: it is told now and then."""

    def check(self) -> None:
        """Raises if the run is to end: cancelled, out of time, or its lease lost."""

    @property
    def seconds_left(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Survey:
    """Storage and tables, listed in this order, and compared."""

    failures: Sequence[PrefixFailure]
    references: References
    drift: Drift


class Surveyor(Protocol):
    def survey(self, ledger_context: LedgerContext, watch: Watch) -> Survey:
        """Storage first, references after. `ReferencesTooMany` where they do not fit; `StorageError` where the
        catalog could not be read at all."""
