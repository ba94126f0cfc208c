"""The types of the domain. No I/O, no dependencies. Those of delivery are in `core/delivery_types.py`.

The states of a block, each with its own data:

    Reserved ──stage──▶ Staged ──publish──▶ Published
        └──────────────▶ Abandoned        (only from Reserved)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

Seq = NewType("Seq", int)  # a sequence number: starts at 1, unique in the lake, never reused

BlockId = NewType("BlockId", int)
DatasetId = NewType("DatasetId", int)  # a row of this site's ledger
DatasetUuid = NewType("DatasetUuid", str)  # created with the dataset, and the same at every site of the lake
ShardId = NewType("ShardId", int)  # unique in the lake; a batch is in one shard of its dataset
SnapshotId = NewType("SnapshotId", int)
Fence = NewType("Fence", int)  # the holder of a block has its fence; taking the block over raises it

SEQ_COLUMN = "_ingest_seq"
PARTITION_COLUMN = "_ingest_partition"  # not `_partition`: Iceberg has such a metadata column, and cannot read both
INTERNAL_COLUMNS = (SEQ_COLUMN, PARTITION_COLUMN)
RESERVED_PREFIX = "_sl_"  # DataFrames get internal columns with this prefix, so no column of a table may have it

SEQ_MAX = Seq(2**63 - 1)
BRANCH_PREFIX = "sl_"


def is_reserved(column: str) -> bool:
    """Whether a user's column must not have this name. Spark ignores case in names."""
    return column.lower() in INTERNAL_COLUMNS or column.lower().startswith(RESERVED_PREFIX)


def seq_or_none(value: int | None) -> Seq | None:
    return None if value is None else Seq(value)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act on a row of the ledger: to deliver to a sink, ingest a batch, or reconcile. A token is never
    used again, not even after a restore of the ledger."""

    row: int
    token: str


@dataclass(frozen=True, order=True, slots=True)
class SeqRange:
    """An inclusive, never empty range of sequence numbers."""

    lo: Seq
    hi: Seq

    def __post_init__(self) -> None:
        if not 1 <= self.lo <= self.hi <= SEQ_MAX:
            raise ValueError(f"not a range of the sequence: {self.lo}..{self.hi}")

    def __len__(self) -> int:
        return self.hi - self.lo + 1

    def __contains__(self, seq: int) -> bool:
        return self.lo <= seq <= self.hi

    def __str__(self) -> str:
        return f"{self.lo}..{self.hi}"

    def overlaps(self, other: SeqRange) -> bool:
        return self.lo <= other.hi and other.lo <= self.hi


def before(seq: Seq) -> Seq | None:
    """The sequence number before this one; None before the first."""
    return Seq(seq - 1) if seq > 1 else None


def merge_ranges(ranges: Iterable[SeqRange]) -> list[SeqRange]:
    """The same sequence numbers in as few disjoint, sorted ranges as possible."""
    merged: list[SeqRange] = []
    for r in sorted(ranges):
        if merged and r.lo <= merged[-1].hi + 1:
            if r.hi > merged[-1].hi:
                merged[-1] = SeqRange(merged[-1].lo, r.hi)
        else:
            merged.append(r)
    return merged


def subtract(ranges: Iterable[SeqRange], taken: Sequence[SeqRange]) -> list[SeqRange]:
    """The sequence numbers of `ranges`, which are sorted and apart, that are in none of `taken`."""
    left: list[SeqRange] = []
    gone = merge_ranges(taken)
    at = 0
    for r in ranges:
        lo = int(r.lo)
        while at < len(gone) and gone[at].hi < lo:
            at += 1
        while at < len(gone) and gone[at].lo <= r.hi:
            if lo < gone[at].lo:
                left.append(SeqRange(Seq(lo), Seq(gone[at].lo - 1)))
            lo = int(gone[at].hi) + 1
            if gone[at].hi > r.hi:
                break  # the next range may be in it, too
            at += 1
        if lo <= r.hi:
            left.append(SeqRange(Seq(lo), r.hi))
    return left


class ItemKind(StrEnum):
    """What a block is to a follower."""

    SEGMENT = "segment"  # rows
    PURGE = "purge"  # rows that a person deleted: the follower deletes them, too
    CUT = "cut"  # a take-over: which blocks of the old leader stay


class BlockKind(StrEnum):
    BATCH = "batch"  # rows from append, ingest, a stream or the receiver
    ADOPTED = "adopted"  # rows that were in the table and got sequence numbers
    RECOVERED = "recovered"  # reserved by a ledger that was lost; rows in the table with these numbers are ours


@dataclass(frozen=True, slots=True)
class BlockHead:
    """What never changes after the reservation."""

    id: BlockId
    dataset: DatasetId
    rows: SeqRange
    kind: BlockKind
    batch_id: str
    digest: str | None
    reserved_at: datetime
    shard: ShardId | None  # None: in every shard of the dataset, as a purge and a cut are
    item: ItemKind = ItemKind.SEGMENT
    offered: bool = False  # a follower's block: its leader has this item, so nobody here abandons it

    @property
    def branch(self) -> str:
        return f"{BRANCH_PREFIX}{self.rows.lo}"

    def branch_at(self, fence: Fence) -> str:
        """Where the holder of this fence stages the block. At a follower, the name contains the fence, and the fence
        contains the epoch: an applier that was wrongly taken for dead never touches what another one has staged."""
        return f"{self.branch}_{fence}" if self.offered else self.branch


@dataclass(frozen=True, slots=True)
class _FencedBlock:
    head: BlockHead
    fence: Fence

    @property
    def branch(self) -> str:
        return self.head.branch_at(self.fence)


@dataclass(frozen=True, slots=True)
class Reserved(_FencedBlock):
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class Staged(_FencedBlock):
    snapshot: SnapshotId
    staged_at: datetime


@dataclass(frozen=True, slots=True)
class Published:
    head: BlockHead
    row_count: int | None  # None for a recovered range: it is unknown how many of its sequence numbers were used
    snapshot: SnapshotId | None  # the snapshot of main that published it; None if history no longer shows it
    published_at: datetime


@dataclass(frozen=True, slots=True)
class Abandoned:
    head: BlockHead
    reason: str
    abandoned_at: datetime


Block = Reserved | Staged | Published | Abandoned
OpenBlock = Reserved | Staged


class History(StrEnum):
    """Whether sinks get the rows that an adopted table held before."""

    DELIVER = "deliver"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Dataset:
    id: DatasetId
    name: str  # namespace.table, as in the catalog
    table_uuid: str
    deliver_by: tuple[str, ...]
    adopted: bool
    history: History
    created_at: datetime
    uuid: DatasetUuid  # identifies it in tokens, in claims at sinks, and at other sites
    first_shard: ShardId
    shards: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """A snapshot of main that contains everything that was settled when it was made."""

    snapshot: SnapshotId
    sequence: int  # its Iceberg sequence number, which grows along every branch; 0 in tables of format version 1


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Counts of a table's rows at one snapshot of main."""

    snapshot: SnapshotId | None
    unnumbered: int
    foreign: int  # rows with a sequence number that no block owns, or that a row of ours has, too
    counted_at: datetime
    twice: int | None = 0  # the foreign rows that share a sequence number; None if counting them would take too long
    twice_first: Seq | None = None  # the lowest such sequence number
    foreign_from: Seq | None = None  # the lowest foreign sequence number that a block reserved since could get


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """How many rows of an adopted table got a sequence number, and in how many commits."""

    rows: int
    steps: int


@dataclass(frozen=True, slots=True)
class Checked:
    """At this snapshot, all sequence numbers in main are at or below the counter, or at or above `beyond`."""

    snapshot: SnapshotId | None
    beyond: int | None


@dataclass(frozen=True, slots=True)
class BlockPlacement:
    """Where a block can be placed without using a sequence number that the table holds."""

    above: int  # the block begins after this sequence number, or after the counter if that is higher
    limit: int  # sequence numbers above it were not checked, so the block must end at or below it
    checked: Checked

    def fits(self, last: int, rows: int) -> bool:
        """Whether the block still fits, now that the counter is at `last`."""
        return max(last, self.above) + rows <= self.limit
