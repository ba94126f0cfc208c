"""Lanes: how far each logical partition of a sink has been delivered.

A lane stores its watermark twice: as a number and as a continuation token. Every read compares them, and refuses a lane
whose two values differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import Lane, SinkId, SinkRecord
from strandline.core.errors import TokenError, WatermarkUnreadable
from strandline.core.read_token import decode
from strandline.core.types import DatasetId, DatasetUuid, Seq, SeqRange, seq_or_none
from strandline.ledger.engine import lock_row, utc_now
from strandline.ledger.row_memo import RowMemo
from strandline.ledger.schema.core import intent, lane, partition_hash, sink

MakeToken = Callable[[Seq | None], str]  # makes the continuation token of a watermark


def _lane(row: Any) -> Lane:
    last = None if row.last_lo is None else SeqRange(Seq(row.last_lo), Seq(row.last_hi))
    # By position: a status has ten thousand of them.
    return Lane(
        row.id,
        row.sink_id,
        row.generation,
        row.partition,
        row.continuation,
        row.mark,
        row.exported,
        row.withheld,
        last,
        row.version,
        row.updated_at,
        row.builds_on,
    )


_OF_ALL = RowMemo(_lane)


def of_sink(sink: SinkRecord) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """The condition for the lanes of the sink's current generation."""
    return lane.c.sink_id == sink.id, lane.c.generation == sink.generation


def _find(connection: sa.Connection, sink: SinkRecord, partition: str) -> Lane | None:
    query = sa.select(lane).where(*of_sink(sink), lane.c.partition_hash == partition_hash(partition))
    row = connection.execute(query).one_or_none()
    return None if row is None else _lane(row)


def list_lanes(connection: sa.Connection, sink: SinkRecord, *, lake: str, dataset: DatasetUuid) -> list[Lane]:
    """The lanes of the sink's current generation, by partition; `WatermarkUnreadable` if one contradicts itself."""
    lanes = unchecked(connection, sink)
    check(lanes, sink, lake=lake, dataset=dataset)
    return lanes


def check(lanes: Iterable[Lane | EqualLanes], sink: SinkRecord, *, lake: str, dataset: DatasetUuid) -> None:
    """Raises `WatermarkUnreadable` if one of these lanes of a sink contradicts itself."""
    decoded: dict[str, Seq | None] = {}  # each token is decoded once: most lanes of a sink have the same watermark
    for checked in lanes:
        token = checked.continuation
        if token not in decoded:
            decoded[token] = _decode(sink, checked, lake, dataset)
        if decoded[token] != checked.mark:
            raise _unreadable(sink, checked, f"it is {checked.mark}, and its token says {decoded[token]}")


def _decode(sink: SinkRecord, checked: Lane | EqualLanes, lake: str, dataset: DatasetUuid) -> Seq | None:
    try:
        token = decode(checked.continuation)
    except TokenError as e:
        raise _unreadable(sink, checked, e.message) from e
    if (token.lake, token.dataset) != (lake, dataset):
        raise _unreadable(sink, checked, "it is from another lake or table")
    return token.after


def _unreadable(sink: SinkRecord, checked: Lane | EqualLanes, why: str) -> WatermarkUnreadable:
    return WatermarkUnreadable(
        f"the watermark of sink {sink.name}, partition {checked.partition!r}, cannot be used: {why}",
        hint=f"`strandline sink recover {sink.name}` reads it from the destination's own record.",
    )


def unchecked(connection: sa.Connection, sink: SinkRecord) -> list[Lane]:
    """The lanes as `list_lanes` returns them, but without its check: for recovery."""
    # Sorted here, because the databases collate texts differently.
    rows = connection.execute(sa.select(lane).where(*of_sink(sink)))
    return sorted(map(_lane, rows), key=lambda one: one.partition)


IS_CURRENT_LANE = (lane.c.sink_id == sink.c.id) & (lane.c.generation == sink.c.generation)


def unchecked_of_all(connection: sa.Connection) -> dict[SinkId, list[Lane]]:
    """The unchecked lanes of every sink that was not removed, in one query. Sinks without lanes are left out."""
    query = sa.select(lane).join_from(lane, sink, IS_CURRENT_LANE).where(sink.c.removed_at.is_(None))
    by_sink: dict[SinkId, list[Lane]] = {}
    for one in _OF_ALL.read(connection.execute(query).all()):
        by_sink.setdefault(one.sink, []).append(one)
    for lanes in by_sink.values():
        lanes.sort(key=lambda one: one.partition)
    return by_sink


@dataclass(frozen=True, slots=True)
class EqualLanes:
    """Lanes of a sink that have the same watermark. A sink has few such groups: most lanes are delivered together."""

    sink: SinkId
    partition: str  # that of one of them
    continuation: str
    mark: Seq | None
    exported: int  # by all of them


def unchecked_by_watermark(connection: sa.Connection) -> dict[SinkId, list[EqualLanes]]:
    """The unchecked lanes of every sink, grouped by watermark in the database."""
    query = (
        sa.select(
            lane.c.sink_id,
            sa.func.min(lane.c.partition),
            lane.c.continuation,
            lane.c.mark,
            sa.cast(sa.func.sum(lane.c.exported), sa.BigInteger),
        )
        .join_from(lane, sink, IS_CURRENT_LANE)
        .where(sink.c.removed_at.is_(None))
        .group_by(lane.c.sink_id, lane.c.continuation, lane.c.mark)
    )
    by_sink: dict[SinkId, list[EqualLanes]] = {}
    for row in connection.execute(query):
        by_sink.setdefault(SinkId(row.sink_id), []).append(EqualLanes(*row))
    return by_sink


def highest_watermark(connection: sa.Connection, dataset: DatasetId) -> Seq | None:
    """The highest sequence number that any sink of the dataset has passed or has planned."""
    of_dataset = (sink.c.dataset_id == dataset, sink.c.removed_at.is_(None))
    marks = sa.union_all(
        sa.select(sink.c.planned.label("mark")).where(*of_dataset),
        sa.select(sa.func.max(lane.c.mark)).join_from(sink, lane, IS_CURRENT_LANE).where(*of_dataset),
    ).subquery()
    return seq_or_none(connection.execute(sa.select(sa.func.max(marks.c.mark))).scalar())


@dataclass(frozen=True, slots=True)
class SinkWatermark:
    sink: SinkId
    name: str
    generation: int
    mark: Seq | None  # the sink certainly has everything up to here that is meant for it


def watermarks_by_title(connection: sa.Connection, dataset: DatasetId) -> dict[str, Seq | None]:
    """The lowest watermark of each sink, by its name."""
    return {at.name: at.mark for at in lowest_watermarks(connection, dataset)}


def lowest_watermarks(connection: sa.Connection, dataset: DatasetId) -> list[SinkWatermark]:
    """For every sink that was not removed (paused and stopped ones too), the lowest watermark of its lanes. It is never
    above `planned`, because rows of a partition without a lane are in no plan yet. Rows before a sink's start are not
    meant for it."""
    lowest = sa.func.min(sa.case((lane.c.id.is_not(None), sa.func.coalesce(lane.c.mark, 0)))).label("lowest")
    columns = (sink.c.id, sink.c.name, sink.c.generation, sink.c.planned)
    rows = connection.execute(
        sa.select(*columns, lowest)
        .join_from(sink, lane, IS_CURRENT_LANE, isouter=True)
        .where(sink.c.dataset_id == dataset, sink.c.removed_at.is_(None))
        .group_by(*columns)
        .order_by(sink.c.id)
    )
    watermarks: list[SinkWatermark] = []
    for row in rows:
        planned = row.planned or 0
        mark = planned if row.lowest is None else min(planned, row.lowest)
        watermarks.append(SinkWatermark(SinkId(row.id), row.name, row.generation, seq_or_none(mark or None)))
    return watermarks


def rebuild(
    connection: sa.Connection,
    of: SinkRecord,
    partition: str,
    *,
    mark: Seq | None,
    token: MakeToken,
    last: SeqRange | None,
    builds_on: Seq | None = None,
) -> Lane:
    """Writes the lane from what the sink itself reports, even if the stored lane is unreadable. Raises
    `WatermarkUnreadable` instead of lowering a watermark.

    A lane with an open intent keeps the watermark at which the intent starts: whoever finishes the intent finds what
    the sink holds. `builds_on`, for a new lane: up to where the generation before it has delivered."""
    # A deliverer takes the same lock, so nobody plans between the read and the update.
    lock_row(connection, sink, of.id)
    stored = _find(connection, of, partition)
    if stored is None:
        fixed = {"sink_id": of.id, "generation": of.generation, "partition": partition, "builds_on": builds_on}
        new = {**fixed, "exported": 0, "withheld": 0, "version": 1, "updated_at": utc_now()}
        inserted = connection.execute(lane.insert().values(**new, **_position(mark, token, last)).returning(lane))
        return _lane(inserted.one())
    pinned = connection.execute(
        sa.select(intent.c.after).where(intent.c.lane_id == stored.id, intent.c.closed_at.is_(None))
    ).one_or_none()
    target = mark if pinned is None else seq_or_none(pinned.after)
    if stored.mark is not None and (target is None or target < stored.mark):
        raise WatermarkUnreadable(
            f"the ledger's watermark of sink {of.name}, partition {partition!r}, is {stored.mark}, above the "
            f"{target} from which it would continue, and watermarks never go back",
            hint=f"`strandline sink reset {of.name}` starts a new generation with watermarks of its own.",
        )
    if last is None or target is None or last.hi > target:
        last = stored.last
    changed = connection.execute(
        lane.update()
        .where(lane.c.id == stored.id, lane.c.version == stored.version)
        .values(version=stored.version + 1, updated_at=utc_now(), **_position(target, token, last))
        .returning(lane)
    )
    return _lane(changed.one())


def forget_last(connection: sa.Connection, of: Lane) -> None:
    """Makes recovery no longer expect the last delivered rows in the sink, which has lost them: a person gave them
    up."""
    connection.execute(
        lane.update()
        .where(lane.c.id == of.id)
        .values(last_lo=None, last_hi=None, builds_on=None, version=lane.c.version + 1, updated_at=utc_now())
    )


def _position(mark: Seq | None, token: MakeToken, last: SeqRange | None) -> dict[str, Any]:
    return {
        "mark": mark,
        "continuation": token(mark),
        "last_lo": None if last is None else last.lo,
        "last_hi": None if last is None else last.hi,
    }
