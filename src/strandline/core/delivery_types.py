"""The words of delivery, as types: sinks, lanes, intents and chunks. No I/O, no dependencies.

A sink gets the rows of one dataset. A lane is one logical partition of it; a dataset without `deliver_by` has one lane,
whose partition is the empty text. An intent is the durable promise to bring a lane from one mark to the next, cut into
chunks that tile the range between them. A chunk's range is its identity, whatever its bytes are.

    chunk:   planned ──▶ landed     the sink holds its rows
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

NOT_PARTITIONED = ""
"""The partition of the one lane of a dataset without `deliver_by`. An encoded partition is never empty."""


class SinkState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    """A person said so."""
    STOPPED = "stopped"
    """Something is not as it must be; a person has to look at it."""


class PeerKind(StrEnum):
    """What the server at the other end of a sink is."""

    RECEIVER = "receiver"
    """A Strandline receiver: it keeps ranges, and every answer of it says so."""
    OTHER = "other"
    """It cannot be asked what it holds; the sink's options say what its answers mean."""


@dataclass(frozen=True, slots=True)
class SinkRecord:
    id: SinkId
    instance: str
    """The sink's own record carries it too, so that a new ledger finds what an old one delivered."""
    name: str
    kind: str
    dataset: DatasetId
    generation: int
    options: Mapping[str, str]
    """As they were given: `env:NAME` is not resolved."""
    destination: str
    start: Seq | None
    """Rows at or below it are not delivered in this generation; None: from the beginning."""
    planned: Seq | None
    """Every row at or below it is in an intent, delivered, or left out: where lanes that were never seen stand."""
    state: SinkState
    reason: str | None
    """Why it is stopped, or what it waits for."""
    failures: int
    """Ticks in a row that did not get through; 0 when the last one did."""
    retry_at: datetime | None
    created_at: datetime
    peer: PeerKind | None = None
    """What answered when the destination was claimed; None for kinds that know one answer only."""
    failing_since: datetime | None = None
    """When the first of its latest failures happened that were all alike; None when the last tick got through."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The watermark of one logical partition, as the ledger caches it; the sink's own record is the truth."""

    id: LaneId
    sink: SinkId
    generation: int
    partition: str
    continuation: str
    """The mark as a token. It is checked against `mark` when it is read: a record that disagrees with itself stops."""
    mark: Seq | None
    exported: int
    withheld: int
    last: SeqRange | None
    """The last range with rows that the sink acknowledged: it must still know of it."""
    version: int
    updated_at: datetime
    builds_on: Seq | None = None
    """Rows at or below it were delivered by the generation before, which must still have them; None where this
    generation began anew."""


class ChunkState(StrEnum):
    PLANNED = "planned"
    LANDED = "landed"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Chunk:
    id: ChunkId
    rows: SeqRange
    state: ChunkState
    expected: int
    """Rows in the lake when it was planned, those that will be withheld too."""
    count: int | None
    withheld: int | None
    digest: str | None
    size: int | None
    found: bool
    """The sink held it already when it was planned: a ledger that was restored learns of it."""
    offered: bool = False
    """It may have been sent: noted before it is, for sinks that cannot be asked what they hold."""


@dataclass(frozen=True, slots=True)
class Intent:
    id: IntentId
    lane: LaneId
    partition: str
    after: Seq | None
    """The mark that it starts from; None: from the beginning."""
    until: Seq
    options: Mapping[str, str]
    """Pinned: a change of the sink's options is for the next intent."""
    opened_at: datetime
    closed_at: datetime | None
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A chunk that is to be stored. One that the sink was found to hold is `landed` from the start."""

    rows: SeqRange
    expected: int
    state: ChunkState = ChunkState.PLANNED
    count: int | None = None
    digest: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What one lane gets in a plan; its chunks tile `after+1..until` (from 1 where `after` is None)."""

    partition: str
    after: Seq | None
    until: Seq
    chunks: tuple[ChunkPlan, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What is recorded of a chunk when its outcome is known."""

    chunk: ChunkId
    state: ChunkState
    count: int
    withheld: int
    digest: str | None
    size: int | None


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that a sink refused, and that is kept in quarantine."""

    id: int
    """In the ledger: a sink that was reset may have refused a number twice."""
    sink: SinkRecord
    removed: bool
    generation: int
    partition: str
    number: Seq
    size: int
    may_have_landed: bool
    """It was sent again, and nobody knows yet what became of it."""
    read: Callable[[], Mapping[str, Any] | None]
    """Its values by column; none where they are gone already, None where nobody can tell."""
