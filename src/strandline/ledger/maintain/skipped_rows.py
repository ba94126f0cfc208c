"""Moves lanes past rows that they will never get: a rule drops rows only after every watermark is above them.

The caller holds the sink's lease, so no earlier deliverer can plan, acknowledge or close any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from strandline.core.delivery_types import Intent, LaneId, SinkRecord
from strandline.core.errors import WatermarkMoved
from strandline.core.types import Lease, Seq
from strandline.ledger.deliver import intents, lanes, sinks
from strandline.ledger.deliver.lanes import MakeToken
from strandline.ledger.engine import utc_now
from strandline.ledger.schema.core import chunk, intent
from strandline.ledger.schema.core import sink as sink_table


@dataclass(frozen=True, slots=True)
class LanePosition:
    """A lane's watermark and its open intent."""

    lane: LaneId
    partition: str
    mark: Seq | None
    intent: Intent | None


@dataclass(frozen=True, slots=True)
class LaneDrop:
    """Moves a lane to `until` without the rows that it lacks. `until` is never inside a chunk that may still land."""

    position: LanePosition
    until: Seq


def lane_positions(connection: sa.Connection, record: SinkRecord) -> list[LanePosition]:
    by_lane = {i.lane: i for i in intents.open_of(connection, record)}
    return [LanePosition(x.id, x.partition, x.mark, by_lane.get(x.id)) for x in lanes.unchecked(connection, record)]


def move(
    connection: sa.Connection,
    record: SinkRecord,
    lease: Lease,
    drops: Sequence[LaneDrop],
    *,
    planned: Seq | None,
    token: MakeToken,
) -> bool:
    """Moves the lanes; False, without a change, if the lease is lost. Landed chunks are counted as if their intent had
    been closed. The part of an intent above `until` becomes an intent of its own, and stays promised."""
    if not sinks.leases.holds(connection, lease):
        return False
    now = utc_now()
    for drop in drops:
        begun = drop.position.intent
        if begun is not None and drop.until >= begun.until:
            _close(connection, begun, now)
        elif begun is not None:
            _split(connection, begun, drop.until, now)
        _move_lane(connection, record, drop, token(drop.until), now)
    if planned is not None and (record.planned is None or record.planned < planned):
        connection.execute(
            sink_table.update()
            .where(sink_table.c.id == record.id, sink_table.c.generation == record.generation)
            .values(planned=planned)
        )
    return True


def _move_lane(connection: sa.Connection, record: SinkRecord, drop: LaneDrop, text: str, now: datetime) -> None:
    begun = drop.position.intent
    done = [c for c in (() if begun is None else begun.chunks) if c.rows.hi <= drop.until]
    move = intents.lane_move(drop.position.lane, drop.position.mark, drop.until, text, done, now)
    moved = connection.execute(intents.MOVE_LANE, move)
    if moved.rowcount != 1:
        raise WatermarkMoved(
            f"sink {record.name}, partition {drop.position.partition!r} moved meanwhile", hint="Try again."
        )


def _close(connection: sa.Connection, begun: Intent, now: datetime) -> None:
    """Closes the intent. Chunks that never landed stay planned, as history: a loss covers their rows."""
    connection.execute(intent.update().where(intent.c.id == begun.id).values(closed_at=now))


def _split(connection: sa.Connection, begun: Intent, until: Seq, now: datetime) -> None:
    """Replaces an intent, which must never change, by two: a closed one that ends at `until`, and the rest."""
    rows = connection.execute(sa.select(chunk).where(chunk.c.intent_id == begun.id).order_by(chunk.c.lo)).all()
    old = connection.execute(sa.select(intent).where(intent.c.id == begun.id)).one()
    connection.execute(chunk.delete().where(chunk.c.intent_id == begun.id))
    connection.execute(intent.delete().where(intent.c.id == begun.id))
    fixed = {"lane_id": old.lane_id, "options": old.options, "opened_at": old.opened_at}
    for after, end, closed_at in ((old.after, until, now), (until, old.until, None)):
        values = {**fixed, "after": after, "until": end, "closed_at": closed_at}
        new_id = connection.execute(intent.insert().values(values).returning(intent.c.id)).scalar_one()
        chunks = [r for r in rows if (after or 0) < r.lo and r.hi <= end]
        # The copies get other ids, which SQLite may have used before: `split_from` would name the wrong chunk.
        changed = {"intent_id": new_id, "split_from": None}
        copied = [{k: v for k, v in r._mapping.items() if k != "id"} | changed for r in chunks]
        connection.execute(chunk.insert(), copied)
