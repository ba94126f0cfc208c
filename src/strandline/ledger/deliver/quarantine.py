"""The quarantine of rows that a sink refused for good, with reasons. Their content is stored in the warehouse.

    held ──▶ replaying ──▶ replayed      it landed after all, in a lane of its own
     │  ◀────────┘                       refused again: nothing landed
     └─────▶ discarded                   a person gave it up

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
from strandline.ledger.engine import Ledger, insert_into, utc_now
from strandline.ledger.schema.core import lane
from strandline.ledger.schema.core import sink as sink_table
from strandline.ledger.schema.receive import quarantined

QuarantinedId = NewType("QuarantinedId", int)


class QuarantineState(StrEnum):
    HELD = "held"
    REPLAYING = "replaying"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


NOT_THERE = (QuarantineState.HELD, QuarantineState.REPLAYING)  # the sink does not have the row, as far as we know


@dataclass(frozen=True, slots=True)
class Quarantined:
    id: QuarantinedId
    sink: SinkId
    generation: int
    lane: LaneId
    partition: str
    seq: Seq
    reason: str
    object: str  # the key of its content
    size: int
    options: Mapping[str, str]  # of the refused send, with `env:NAME` unresolved
    form: str  # the sink's description of the table that was sent
    state: QuarantineState
    replay_number: int | None
    at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class SetAside:
    """A refused row whose content is stored and whose record is not."""

    lane: LaneId
    seq: Seq
    reason: str
    object: str
    size: int
    options: Mapping[str, str]
    form: str


def set_aside(ledger: Ledger, lease: Lease, rows: Sequence[tuple[ChunkId, SetAside]]) -> bool:
    """Quarantines the rows and settles their chunks (of one row each) as empty, in one transaction. False if the lease
    is lost. Idempotent."""
    acks = [Acknowledged(chunk, ChunkState.EMPTY, 0, 0, None, None) for chunk, _ in rows]
    with ledger.write() as connection:
        if not intents.acknowledge_in(connection, lease, acks):
            return False
        for _, row in rows:
            add(connection, row)
    return True


def add(connection: sa.Connection, row: SetAside) -> bool:
    """False if the row is quarantined already. The caller's transaction must settle the chunk, too."""
    now = utc_now()
    found = sa.select(
        lane.c.sink_id,
        lane.c.generation,
        lane.c.id,
        *(
            sa.literal(value, column.type)
            for column, value in (
                (quarantined.c.seq, row.seq),
                (quarantined.c.reason, row.reason),
                (quarantined.c.object, row.object),
                (quarantined.c.size, row.size),
                (quarantined.c.options, options_text(row.options)),
                (quarantined.c.form, row.form),
                (quarantined.c.state, QuarantineState.HELD.value),
                (quarantined.c.at, now),
                (quarantined.c.changed_at, now),
            )
        ),
    ).where(lane.c.id == row.lane)
    names = ["sink_id", "generation", "lane_id", "seq", "reason", "object", "size", "options", "form", "state"]
    added = connection.execute(
        insert_into(connection, quarantined)
        .from_select([*names, "at", "changed_at"], found)
        .on_conflict_do_nothing(index_elements=["lane_id", "seq"])
        .returning(quarantined.c.id)
    )
    return added.one_or_none() is not None


def _quarantined(row: Any) -> Quarantined:
    return Quarantined(
        QuarantinedId(row.id),
        SinkId(row.sink_id),
        row.generation,
        LaneId(row.lane_id),
        row.partition,
        Seq(row.seq),
        row.reason,
        row.object,
        row.size,
        json.loads(row.options),
        row.form,
        QuarantineState(row.state),
        row.replay_number,
        row.at,
        row.changed_at,
    )


_WITH_PARTITION = sa.select(quarantined, lane.c.partition).join_from(
    quarantined, lane, lane.c.id == quarantined.c.lane_id
)


def list_quarantined(
    connection: sa.Connection, sink: SinkRecord, states: Collection[QuarantineState] | None = None
) -> list[Quarantined]:
    """The sink's rows by sequence number; `states` None means any state. All generations are included, because a reset
    does not deliver again what lies before its start."""
    query = _WITH_PARTITION.where(quarantined.c.sink_id == sink.id).order_by(quarantined.c.seq, quarantined.c.id)
    if states is not None:
        query = query.where(quarantined.c.state.in_([state.value for state in states]))
    return [_quarantined(row) for row in connection.execute(query)]


def page(
    connection: sa.Connection,
    sinks: Collection[SinkId],
    *,
    states: Collection[QuarantineState] | None,
    after: int | None,
    rows_max: int,
) -> list[Quarantined]:
    """Rows of these sinks, by id; `after` is the last id of the previous page."""
    query = _WITH_PARTITION.where(quarantined.c.sink_id.in_(sinks))
    if states is not None:
        query = query.where(quarantined.c.state.in_([state.value for state in states]))
    if after is not None:
        query = query.where(quarantined.c.id > after)
    return [_quarantined(row) for row in connection.execute(query.order_by(quarantined.c.id).limit(rows_max))]


def of_dataset(
    connection: sa.Connection, dataset: DatasetId, states: Collection[QuarantineState] | None = None
) -> list[Quarantined]:
    """Of every sink that the dataset has or had."""
    query = (
        _WITH_PARTITION.join(sink_table, sink_table.c.id == quarantined.c.sink_id)
        .where(sink_table.c.dataset_id == dataset)
        .order_by(quarantined.c.id)
    )
    if states is not None:
        query = query.where(quarantined.c.state.in_([state.value for state in states]))
    return [_quarantined(row) for row in connection.execute(query)]


def get(connection: sa.Connection, id: QuarantinedId) -> Quarantined | None:
    row = connection.execute(_WITH_PARTITION.where(quarantined.c.id == id)).one_or_none()
    return None if row is None else _quarantined(row)


def of_lane(connection: sa.Connection, lane_id: LaneId) -> list[Quarantined]:
    """The lane's rows in any state, by sequence number. They explain the gaps in what the lane delivered."""
    query = _WITH_PARTITION.where(quarantined.c.lane_id == lane_id).order_by(quarantined.c.seq)
    return [_quarantined(row) for row in connection.execute(query)]


def count(connection: sa.Connection, sink: SinkRecord) -> int:
    """How many rows of the current generation the sink does not have, as far as we know."""
    return sum(counts(connection, sink).values())


def counts(connection: sa.Connection, sink: SinkRecord) -> dict[LaneId, int]:
    """The same per lane, without lanes that have none."""
    rows = connection.execute(
        sa.select(quarantined.c.lane_id, sa.func.count())
        .where(
            quarantined.c.sink_id == sink.id,
            quarantined.c.generation == sink.generation,
            quarantined.c.state.in_([state.value for state in NOT_THERE]),
        )
        .group_by(quarantined.c.lane_id)
    )
    return {LaneId(id): found for id, found in rows}


def start_replay(ledger: Ledger, id: QuarantinedId, *, above: int = 0) -> int | None:
    """Returns the row's number in the replay lane of its sink and generation; None if there is nothing to replay.

    A row keeps its number, because it may have landed under it. A new number is also above `above`, the highest that
    the sink was found to hold: a restored ledger may have forgotten numbers."""
    with ledger.write() as connection:
        found = get(connection, id)
        if found is None or found.state not in NOT_THERE:
            return None
        # The lock gives two concurrent replays two numbers.
        connection.execute(
            sa.select(sink_table.c.id).where(sink_table.c.id == found.sink).with_for_update(key_share=True)
        ).all()
        found = get(connection, id)
        if found is None or found.state not in NOT_THERE:
            return None
        number = found.replay_number
        if number is None:
            highest = connection.execute(
                sa.select(sa.func.max(quarantined.c.replay_number)).where(
                    quarantined.c.sink_id == found.sink, quarantined.c.generation == found.generation
                )
            ).scalar()
            number = max(highest or 0, above) + 1
        if found.state is QuarantineState.HELD:
            _move(connection, id, QuarantineState.HELD, QuarantineState.REPLAYING, replay_number=number)
        return number


def _move(
    connection: sa.Connection, id: QuarantinedId, before: QuarantineState, after: QuarantineState, **values: Any
) -> bool:
    """True also if the row is in the new state already."""
    connection.execute(
        quarantined.update()
        .where(quarantined.c.id == id, quarantined.c.state == before.value)
        .values(state=after.value, changed_at=utc_now(), **values)
    )
    return connection.execute(sa.select(quarantined.c.state).where(quarantined.c.id == id)).scalar() == after.value


def replayed(ledger: Ledger, id: QuarantinedId) -> bool:
    """The row landed. False if it was not being replayed."""
    with ledger.write() as connection:
        return _move(connection, id, QuarantineState.REPLAYING, QuarantineState.REPLAYED)


def refused_again(ledger: Ledger, id: QuarantinedId, reason: str) -> bool:
    """The sink refused the row for good, so nothing landed: the row is held again, with the new reason and its old
    number. Never call this after an unknown outcome. False if the row landed or was discarded."""
    with ledger.write() as connection:
        return _move(connection, id, QuarantineState.REPLAYING, QuarantineState.HELD, reason=reason)


def discard(ledger: Ledger, id: QuarantinedId) -> bool:
    """False if the row is not held: it landed, or may have."""
    with ledger.write() as connection:
        return _move(connection, id, QuarantineState.HELD, QuarantineState.DISCARDED)
