"""The types of delivery: sinks, lanes, intents and chunks. No I/O, no dependencies.

A sink gets the rows of one dataset. A lane is one logical partition of it; a dataset without `deliver_by` has one lane,
whose partition is the empty text. An intent is the durable promise to bring a lane from one watermark to the next, cut
into chunks that tile the range between them. A chunk's range is its identity, whatever its bytes are.

    chunk:   planned ──▶ landed     the sink has its rows
                └──────▶ empty      there was nothing to send: no rows, or all of them withheld
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

from strandline.core.types import DatasetId, Seq, SeqRange

SinkId = NewType("SinkId", int)
LaneId = NewType("LaneId", int)
IntentId = NewType("IntentId", int)
ChunkId = NewType("ChunkId", int)

NOT_PARTITIONED = ""  # the partition of the only lane of a dataset without `deliver_by`; no encoded one is empty


class SinkState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"  # by a person
    STOPPED = "stopped"  # by an error that a person has to fix


class PeerKind(StrEnum):
    """The kind of server at the other end of a sink."""

    RECEIVER = "receiver"  # a Strandline receiver: each response identifies it, and it can list what it has
    OTHER = "other"  # cannot list what it has; the sink's options define what its responses mean


@dataclass(frozen=True, slots=True)
class SinkRecord:
    id: SinkId
    instance: str  # also in the sink's own record, so that a new ledger finds what an old one delivered
    name: str
    kind: str
    dataset: DatasetId
    generation: int
    options: Mapping[str, str]  # with `env:NAME` unresolved
    destination: str
    start: Seq | None  # rows at or below it are not delivered in this generation; None: from the beginning
    planned: Seq | None  # rows at or below it are in an intent, delivered, or left out: the watermark of a new lane
    state: SinkState
    reason: str | None  # why it is stopped, or what it waits for
    failures: int  # consecutive failed ticks; 0 after a success
    retry_at: datetime | None
    created_at: datetime
    peer: PeerKind | None = None  # found when the destination was claimed; None for sinks where it is irrelevant
    failing_since: datetime | None = None  # the first failure since a success, or since rows landed
    from_now: bool | None = None  # whether it was added for new rows only; None: by a version that did not store that


@dataclass(frozen=True, slots=True)
class Lane:
    """The watermark of one logical partition. The ledger's copy is a cache; the sink's own record is the truth."""

    id: LaneId
    sink: SinkId
    generation: int
    partition: str
    continuation: str  # the watermark as a token; every read compares it with `mark`, the watermark as a number
    mark: Seq | None
    exported: int
    withheld: int
    last: SeqRange | None  # the last range with rows that the sink acknowledged; it must still have it
    version: int
    updated_at: datetime
    # The generation before delivered the rows at or below it, and the destination must still have them. None if this
    # generation began from scratch.
    builds_on: Seq | None = None


class ChunkState(StrEnum):
    PLANNED = "planned"
    LANDED = "landed"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Chunk:
    id: ChunkId
    rows: SeqRange
    state: ChunkState
    expected: int  # rows in the lake when it was planned, including those that will be withheld
    count: int | None
    withheld: int | None
    digest: str | None
    size: int | None
    found: bool  # the sink had it when it was planned: so a restored ledger learns of it
    offered: bool = False  # it may have been sent; stored before the send, for sinks that cannot list what they have


@dataclass(frozen=True, slots=True)
class Intent:
    id: IntentId
    lane: LaneId
    partition: str
    after: Seq | None  # the watermark that it starts from; None: from the beginning
    until: Seq
    options: Mapping[str, str]  # fixed: new options of the sink apply to the next intent
    opened_at: datetime
    closed_at: datetime | None
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A chunk to be stored. If the sink was found to have it, it is `landed` from the start."""

    rows: SeqRange
    expected: int
    state: ChunkState = ChunkState.PLANNED
    count: int | None = None
    digest: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What one lane gets in a plan. Its chunks tile `after+1..until` (from 1 if `after` is None)."""

    partition: str
    after: Seq | None
    until: Seq
    chunks: tuple[ChunkPlan, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The outcome of a chunk."""

    chunk: ChunkId
    state: ChunkState
    count: int
    withheld: int
    digest: str | None
    size: int | None


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that a sink refused and that is in quarantine."""

    id: int  # of the ledger: a sink that was reset may have refused a sequence number twice
    sink: SinkRecord
    removed: bool
    generation: int
    partition: str
    number: Seq
    size: int
    may_have_landed: bool  # it was sent again with an unknown outcome
    read: Callable[[], Mapping[str, Any] | None]  # its values by column; empty if they are deleted, None if unreadable
