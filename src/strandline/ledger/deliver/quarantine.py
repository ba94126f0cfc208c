"""The quarantine of rows that a sink refused for good, with reasons. Their content is stored in the warehouse.

    held ──▶ replaying ──▶ replayed      it landed after all, in a lane of its own
     │  ◀────────┘                       refused again: nothing landed
     └─────▶ discarded                   a person gave the row up

A row that is being replayed may have landed, so it cannot be discarded until its outcome is known.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

import sqlalchemy as sa

from strandline.core.delivery_types import Acknowledged, ChunkId, ChunkState, LaneId, SinkId, SinkRecord
from strandline.core.types import DatasetId, Lease, Seq
from strandline.ledger.deliver import intents
from strandline.ledger.deliver.sinks import options_text
from strandline.ledger.engine import Ledger, from_row, insert_into, lock_row, utc_now
from strandline.ledger.schema.core import lane
from strandline.ledger.schema.core import sink as sink_table
from strandline.ledger.schema.receive import quarantined

QuarantinedId = NewType("QuarantinedId", int)


class QuarantineState(StrEnum):
    HELD = "held"
    REPLAYING = "replaying"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


NOT_DELIVERED = (QuarantineState.HELD, QuarantineState.REPLAYING)  # the sink does not have the row, as far as we know


@dataclass(frozen=True, slots=True)
class StoredRefusedRow:
    """A refused row whose content is stored and whose record is not."""

    lane: LaneId
    seq: Seq
    reason: str
    object: str  # the key of its content
    size: int
    options: Mapping[str, str]  # of the refused send, with `env:NAME` unresolved
    form: str  # the sink's description of the table that was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(StoredRefusedRow):
    id: QuarantinedId
    sink: SinkId
    generation: int
    partition: str
    state: QuarantineState
    replay_number: int | None
    at: datetime
    changed_at: datetime


def quarantine_rows(ledger: Ledger, lease: Lease, rows: Sequence[tuple[ChunkId, StoredRefusedRow]]) -> bool:
    """Quarantines the rows and settles their chunks (of one row each) as empty, in one transaction. False if the lease
    is lost. Idempotent."""
    acks = [Acknowledged(chunk, ChunkState.EMPTY, 0, 0, None, None) for chunk, _ in rows]
    with ledger.write() as connection:
        if not intents.acknowledge_in(connection, lease, acks):
            return False
        for _, row in rows:
            add(connection, row)
    return True


def add(connection: sa.Connection, row: StoredRefusedRow) -> bool:
    """Quarantines the row; False if it is quarantined already. The caller's transaction must settle the chunk, too."""
    now = utc_now()
    of = connection.execute(sa.select(lane.c.sink_id, lane.c.generation).where(lane.c.id == row.lane)).one()
    refused = {"seq": row.seq, "reason": row.reason, "object": row.object, "size": row.size, "form": row.form}
    added = connection.execute(
        insert_into(connection, quarantined)
        .values(
            sink_id=of.sink_id,
            generation=of.generation,
            lane_id=row.lane,
            **refused,
            options=options_text(row.options),
            state=QuarantineState.HELD.value,
            at=now,
            changed_at=now,
        )
        .on_conflict_do_nothing(index_elements=["lane_id", "seq"])
        .returning(quarantined.c.id)
    )
    return added.one_or_none() is not None


def _read(
    connection: sa.Connection, query: sa.Select[Any], states: Collection[QuarantineState] | None = None
) -> list[Quarantined]:
    """`states`: None means any state."""
    if states is not None:
        query = query.where(quarantined.c.state.in_([state.value for state in states]))
    return [
        from_row(
            Quarantined,
            row,
            sink=row.sink_id,
            lane=row.lane_id,
            options=json.loads(row.options),
            state=QuarantineState(row.state),
        )
        for row in connection.execute(query)
    ]


_WITH_PARTITION = sa.select(quarantined, lane.c.partition).join_from(
    quarantined, lane, lane.c.id == quarantined.c.lane_id
)


def list_quarantined(
    connection: sa.Connection, sink: SinkRecord, states: Collection[QuarantineState] | None = None
) -> list[Quarantined]:
    """The sink's quarantined rows by sequence number, of all generations: a reset does not deliver the rows before its
    start again."""
    query = _WITH_PARTITION.where(quarantined.c.sink_id == sink.id).order_by(quarantined.c.seq, quarantined.c.id)
    return _read(connection, query, states)


def page(
    connection: sa.Connection,
    sinks: Collection[SinkId],
    *,
    states: Collection[QuarantineState] | None,
    after: int | None,
    rows_max: int,
) -> list[Quarantined]:
    """Rows of these sinks, by id; `after` is the last id of the previous page."""
    query = _WITH_PARTITION.where(quarantined.c.sink_id.in_(sinks)).order_by(quarantined.c.id).limit(rows_max)
    return _read(connection, query if after is None else query.where(quarantined.c.id > after), states)


def count_waiting(connection: sa.Connection) -> dict[SinkId, int]:
    """How many rows of each sink wait for a person's decision, without sinks that have none."""
    query = sa.select(quarantined.c.sink_id, sa.func.count().label("rows")).group_by(quarantined.c.sink_id)
    waiting = query.where(quarantined.c.state.in_([state.value for state in NOT_DELIVERED]))
    return {SinkId(r.sink_id): int(r.rows) for r in connection.execute(waiting)}


def of_dataset(
    connection: sa.Connection, dataset: DatasetId, states: Collection[QuarantineState] | None = None
) -> list[Quarantined]:
    """The quarantined rows of every sink that the dataset has or had."""
    query = (
        _WITH_PARTITION.join(sink_table, sink_table.c.id == quarantined.c.sink_id)
        .where(sink_table.c.dataset_id == dataset)
        .order_by(quarantined.c.id)
    )
    return _read(connection, query, states)


def get(connection: sa.Connection, id: QuarantinedId) -> Quarantined | None:
    rows = _read(connection, _WITH_PARTITION.where(quarantined.c.id == id))
    return rows[0] if rows else None


def start_replay(ledger: Ledger, id: QuarantinedId) -> int | None:
    """Returns the row's number in the replay lane of its sink and generation; None if there is nothing to replay.

    A row keeps its number, because it may have landed under it."""
    with ledger.write() as connection:
        # The lock gives two concurrent replays two numbers.
        of = sa.select(quarantined.c.sink_id).where(quarantined.c.id == id).scalar_subquery()
        lock_row(connection, sink_table, of)
        row = get(connection, id)
        if row is None or row.state not in NOT_DELIVERED:
            return None
        number = row.replay_number
        if number is None:
            highest = connection.execute(
                sa.select(sa.func.max(quarantined.c.replay_number)).where(
                    quarantined.c.sink_id == row.sink, quarantined.c.generation == row.generation
                )
            ).scalar()
            number = (highest or 0) + 1
        if row.state is QuarantineState.HELD:
            _move(connection, id, QuarantineState.HELD, QuarantineState.REPLAYING, replay_number=number)
        return number


def _move(
    connection: sa.Connection, id: QuarantinedId, before: QuarantineState, after: QuarantineState, /, **values: Any
) -> bool:
    """Changes the state of the row. True also if it was in the new state already."""
    connection.execute(
        quarantined.update()
        .where(quarantined.c.id == id, quarantined.c.state == before.value)
        .values(state=after.value, changed_at=utc_now(), **values)
    )
    return connection.execute(sa.select(quarantined.c.state).where(quarantined.c.id == id)).scalar() == after.value


def replayed(ledger: Ledger, id: QuarantinedId) -> bool:
    """Records that the row landed. False if it was not being replayed."""
    return ledger.change(_move, id, QuarantineState.REPLAYING, QuarantineState.REPLAYED)


def refused_again(ledger: Ledger, id: QuarantinedId, reason: str) -> bool:
    """Records that the sink refused the row for good again. Nothing landed, so the row is held again, with the new
    reason and its old number. Never call this after an unknown outcome. False if the row landed or was discarded."""
    return ledger.change(_move, id, QuarantineState.REPLAYING, QuarantineState.HELD, reason=reason)


def discard(ledger: Ledger, id: QuarantinedId) -> bool:
    """Discards the row; False if it is not held, because it landed or may have."""
    return ledger.change(discard_in, id)


def discard_in(connection: sa.Connection, id: QuarantinedId) -> bool:
    """Discards a row in the caller's transaction; see `discard`."""
    return _move(connection, id, QuarantineState.HELD, QuarantineState.DISCARDED)
