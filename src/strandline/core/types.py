"""The words of the domain, as types. No I/O, no dependencies. Those of delivery are in `core/delivery_types.py`.

A block's life, and the data each state carries:

    Reserved ──stage──▶ Staged ──publish──▶ Published
        └──────────────▶ Abandoned        (only from Reserved)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

Seq = NewType("Seq", int)
"""A sequence number: starts at 1, unique in the lake, never reused."""

BlockId = NewType("BlockId", int)
DatasetId = NewType("DatasetId", int)
SnapshotId = NewType("SnapshotId", int)
Fence = NewType("Fence", int)
"""Whoever holds a block holds its fence; taking a block over raises it."""

SEQ_COLUMN = "_ingest_seq"
PARTITION_COLUMN = "_ingest_partition"
"""Not `_partition`, which is a metadata column of Iceberg's own and cannot be read beside a column of that name."""
INTERNAL_COLUMNS = (SEQ_COLUMN, PARTITION_COLUMN)
RESERVED_PREFIX = "_sl_"
"""Frames of ours hold columns with such names beside those of a table, so no column of a table may have one."""

SEQ_MAX = Seq(2**63 - 1)
BRANCH_PREFIX = "sl_"


def is_reserved(column: str) -> bool:
    """Whether a user's column cannot have this name. Spark does not tell names apart by upper and lower case."""
    return column.lower() in INTERNAL_COLUMNS or column.lower().startswith(RESERVED_PREFIX)


@dataclass(frozen=True, slots=True)
class Lease:
    """Whoever holds it acts on a row of the ledger: delivers to a sink, ingests a batch, reconciles. The token is never
    used again, not even after a restore of the ledger."""

    row: int
    token: str


@dataclass(frozen=True, order=True, slots=True)
class SeqRange:
    """An inclusive, never empty range of the sequence."""

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


def merge_ranges(ranges: Iterable[SeqRange]) -> list[SeqRange]:
    """The same numbers as few disjoint, sorted ranges."""
    merged: list[SeqRange] = []
    for r in sorted(ranges):
        if merged and r.lo <= merged[-1].hi + 1:
            if r.hi > merged[-1].hi:
                merged[-1] = SeqRange(merged[-1].lo, r.hi)
        else:
            merged.append(r)
    return merged


class BlockKind(StrEnum):
    BATCH = "batch"
    """Rows that came in through append, ingest or a stream."""
    ADOPTED = "adopted"
    """Rows that were in the table already and were given numbers."""
    RECOVERED = "recovered"
    """Numbers taken by a ledger that was lost; whatever of them is in the table is ours."""


@dataclass(frozen=True, slots=True)
class BlockHead:
    """What is fixed when a block is reserved."""

    id: BlockId
    dataset: DatasetId
    rows: SeqRange
    kind: BlockKind
    batch_id: str
    digest: str | None
    reserved_at: datetime

    @property
    def branch(self) -> str:
        return f"{BRANCH_PREFIX}{self.rows.lo}"


@dataclass(frozen=True, slots=True)
class Reserved:
    head: BlockHead
    fence: Fence
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class Staged:
    head: BlockHead
    fence: Fence
    snapshot: SnapshotId
    staged_at: datetime


@dataclass(frozen=True, slots=True)
class Published:
    head: BlockHead
    row_count: int | None
    """None for a recovered range: how many of its numbers were used is not known."""
    snapshot: SnapshotId | None
    """The main snapshot that published it; None where history no longer tells."""
    published_at: datetime


@dataclass(frozen=True, slots=True)
class Abandoned:
    head: BlockHead
    reason: str
    abandoned_at: datetime


Block = Reserved | Staged | Published | Abandoned
OpenBlock = Reserved | Staged


class History(StrEnum):
    """What sinks get of the rows that an adopted table held before."""

    DELIVER = "deliver"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Dataset:
    id: DatasetId
    name: str
    """namespace.table, as the catalog knows it."""
    table_uuid: str
    deliver_by: tuple[str, ...]
    adopted: bool
    history: History
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Anchor:
    """A snapshot of main that holds everything which was settled when it was made."""

    snapshot: SnapshotId
    sequence: int
    """Iceberg's sequence number of it, which grows along every branch; 0 in tables of format 1, which have none."""


@dataclass(frozen=True, slots=True)
class TableCounts:
    """What the table held when it was last counted, at one snapshot of main."""

    snapshot: SnapshotId | None
    unnumbered: int
    foreign: int
    """Rows with a number that no block owns, and rows that share a number with a row of ours."""
    counted_at: datetime
    twice: int | None = 0
    """Of the foreign rows, those that share a number; None where it would take too long to tell."""
    twice_first: Seq | None = None
    """The lowest such number."""

    @property
    def all_ours(self) -> bool:
        return self.foreign == 0 and self.twice == 0


@dataclass(frozen=True, slots=True)
class Numbered:
    """Rows of an adopted table that got a number, and in how many commits."""

    rows: int
    steps: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a table's numbers: those that main held at this snapshot are at or below the counter, or at
    `beyond` and above."""

    snapshot: SnapshotId | None
    beyond: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block may lie so that it meets no number that the table held."""

    above: int
    """The block begins behind this number, or behind the counter, if that is higher."""
    limit: int
    """Nothing is known of numbers above it, so the block must end at or below it."""
    checked: Checked

    def fits(self, last: int, rows: int) -> bool:
        """Whether it still holds where the counter is now."""
        return max(last, self.above) + rows <= self.limit
