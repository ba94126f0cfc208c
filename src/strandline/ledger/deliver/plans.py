"""Checks a plan (what every lane of a sink gets next) and writes it in the transaction of `intents.store_plan`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import NOT_PARTITIONED, ChunkPlan, ChunkState, LaneId, LanePlan, SinkRecord
from strandline.core.errors import WatermarkMoved
from strandline.core.types import Seq
from strandline.ledger.deliver.lanes import MakeToken, of_sink
from strandline.ledger.deliver.sinks import options_text
from strandline.ledger.engine import one_of, utc_now
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import followers
from strandline.ledger.schema.core import chunk, dataset, intent, lane
from strandline.ledger.schema.core import sink as sink_table


def check(lanes: Sequence[LanePlan], until: Seq) -> None:
    """`ValueError` unless each lane occurs once, its chunks have no gap or overlap, and nothing is beyond `until`."""
    if len({plan.partition for plan in lanes}) != len(lanes):
        raise ValueError("a lane is in the plan twice")
    for plan in lanes:
        _check_tiling(plan, until)


def check_followers(connection: sa.Connection, sink: SinkRecord, upto: Seq) -> None:
    """Raises WatermarkMoved if rows up to `upto` may not be promised any more: a follower was added, or created again,
    since the planner read the ledger. What this sink was promised before stays promised."""
    lowest = followers.sealed_by_all(connection).get(sink.dataset, upto)
    if upto > max(lowest or 0, sink.planned or 0):
        raise WatermarkMoved(
            f"sink {sink.name} waits for followers: its plan goes up to {upto}, and one of them has everything only up "
            f"to {lowest or 0}",
            hint="It is planned again once they have caught up.",
        )


def write(
    connection: sa.Connection,
    sink: SinkRecord,
    until: Seq,
    lanes: Sequence[LanePlan],
    options: Mapping[str, str],
    token: MakeToken,
    left_out: Collection[str],
) -> set[LaneId]:
    """Stores the plan and returns the lanes that got an intent. The caller has checked the fence."""
    now = utc_now()
    planned = _move_planned(connection, sink, until)
    stored = _lanes(connection, sink)
    new = {plan.partition: sink.planned for plan in lanes if plan.partition not in stored}
    if NOT_PARTITIONED not in stored | new and _is_not_partitioned(connection, sink):
        new[NOT_PARTITIONED] = planned
    if new:
        _insert_lanes(connection, sink, new, token, now)
        stored = _lanes(connection, sink)
    for plan in lanes:
        _check_lane(sink, plan, stored[plan.partition])
    with_ids = [(LaneId(stored[plan.partition].id), plan) for plan in lanes]
    _store(connection, sink, with_ids, options_text(options), now)
    _move_other_lanes(connection, sink, until, token, now, left_out)
    return {id for id, _ in with_ids}


def _check_tiling(plan: LanePlan, until: Seq) -> None:
    at = plan.after or 0
    for part in plan.chunks:
        if part.rows.lo != at + 1:
            raise ValueError(f"partition {plan.partition!r}: chunk {part.rows} does not begin after {at}")
        at = part.rows.hi
    if not plan.chunks or at != plan.until:
        raise ValueError(f"partition {plan.partition!r}: the chunks end at {at}, not at {plan.until}")
    if plan.until > until:
        raise ValueError(f"partition {plan.partition!r} would get rows up to {plan.until}, the plan ends at {until}")


def _move_planned(connection: sa.Connection, sink: SinkRecord, until: Seq) -> Seq:
    planned = until if sink.planned is None else max(sink.planned, until)
    if planned != sink.planned:
        sealed = blocks.sealed(connection, sink.dataset)
        if sealed is None or until > sealed:
            raise ValueError(f"a plan up to {until} is above the seal ({sealed})")
    moved = connection.execute(
        sink_table.update()
        .where(
            sink_table.c.id == sink.id,
            sink_table.c.generation == sink.generation,
            sink_table.c.planned.is_not_distinct_from(sa.literal(sink.planned, sa.BigInteger)),
        )
        .values(planned=planned)
    )
    if moved.rowcount != 1:
        raise WatermarkMoved(
            f"sink {sink.name} has changed since its plan was made",
            hint="Another process delivered to it, or it was reset: try again.",
        )
    return planned


def _lanes(connection: sa.Connection, sink: SinkRecord) -> dict[str, Any]:
    """The lanes by partition, each with the id of its open intent."""
    rows = connection.execute(
        sa.select(lane.c.partition, lane.c.id, lane.c.mark, intent.c.id.label("intent"))
        .join_from(lane, intent, (intent.c.lane_id == lane.c.id) & intent.c.closed_at.is_(None), isouter=True)
        .where(*of_sink(sink))
    )
    return {r.partition: r for r in rows}


def _check_lane(sink: SinkRecord, plan: LanePlan, stored: Any) -> None:
    if stored.intent is not None:
        raise ValueError(f"sink {sink.name}, partition {plan.partition!r} has an open intent")
    if stored.mark != plan.after:
        raise ValueError(
            f"sink {sink.name}, partition {plan.partition!r}: its plan begins after {plan.after}, its watermark is "
            f"{stored.mark}"
        )


def _is_not_partitioned(connection: sa.Connection, sink: SinkRecord) -> bool:
    columns = connection.execute(sa.select(dataset.c.deliver_by).where(dataset.c.id == sink.dataset)).scalar()
    return columns == "[]"


def _insert_lanes(
    connection: sa.Connection, sink: SinkRecord, marks: Mapping[str, Seq | None], token: MakeToken, now: datetime
) -> None:
    tokens = {mark: token(mark) for mark in set(marks.values())}
    fixed = {"sink_id": sink.id, "generation": sink.generation, "exported": 0, "withheld": 0, "version": 1}
    connection.execute(
        lane.insert(),
        [
            {**fixed, "partition": partition, "mark": mark, "continuation": tokens[mark], "updated_at": now}
            for partition, mark in marks.items()
        ],
    )


def _store(
    connection: sa.Connection, sink: SinkRecord, plans: Sequence[tuple[LaneId, LanePlan]], options: str, now: datetime
) -> None:
    if not plans:
        return
    connection.execute(
        intent.insert(),
        [{"lane_id": id, "after": p.after, "until": p.until, "options": options, "opened_at": now} for id, p in plans],
    )
    opened = connection.execute(
        sa.select(intent.c.lane_id, intent.c.id)
        .join_from(intent, lane, lane.c.id == intent.c.lane_id)
        .where(*of_sink(sink), intent.c.closed_at.is_(None))
    )
    intents = {r.lane_id: r.id for r in opened}
    connection.execute(
        chunk.insert(),
        [{"intent_id": intents[id], "lane_id": id, **_values(part, now)} for id, p in plans for part in p.chunks],
    )


def _values(part: ChunkPlan, now: datetime) -> dict[str, Any]:
    count, withheld = (0, part.expected) if part.state is ChunkState.EMPTY else (part.count, None)
    return {
        "lo": part.rows.lo,
        "hi": part.rows.hi,
        "state": part.state.value,
        "expected": part.expected,
        "row_count": count,
        "withheld": withheld,
        "digest": part.digest,
        "size": part.size,
        "found": part.state is ChunkState.LANDED,
        "offered": False,
        "acked_at": None if part.state is ChunkState.PLANNED else now,
    }


def _move_other_lanes(
    connection: sa.Connection, sink: SinkRecord, until: Seq, token: MakeToken, now: datetime, left_out: Collection[str]
) -> None:
    """Moves the watermarks of lanes that get nothing. The condition on open intents skips both the lanes of the plan
    and those that had one before. A lane in `left_out` had an open intent when the planner read the ledger, so its rows
    were not scanned: it does not move, even if that intent was closed since."""
    connection.execute(
        lane.update()
        .where(
            *of_sink(sink),
            sa.or_(lane.c.mark.is_(None), lane.c.mark < until),
            ~sa.exists().where(intent.c.lane_id == lane.c.id, intent.c.closed_at.is_(None)),
            lane.c.partition.not_in(one_of(connection, left_out)),
        )
        .values(mark=until, continuation=token(until), version=lane.c.version + 1, updated_at=now)
    )
