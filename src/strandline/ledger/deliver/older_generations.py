"""What older generations of a sink delivered, below the point where the current generation began."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import Lane, LaneId, SinkRecord
from strandline.core.types import Seq, SeqRange, seq_or_none
from strandline.ledger.deliver import intents
from strandline.ledger.deliver.lanes import of_sink
from strandline.ledger.engine import rows_with
from strandline.ledger.schema.core import chunk, intent, lane, partition_hash
from strandline.ledger.schema.core import sink as sink_table


@dataclass(frozen=True, slots=True)
class Foundation:
    """Ranges of an older generation that a lane builds on, and that the destination must still have."""

    partition: str
    generation: int  # the generation that delivered the ranges
    lane: LaneId  # the lane of that generation
    began: int  # rows up to here are from a still older generation
    ranges: tuple[SeqRange, ...]  # of that lane's last intent below with rows, in order


@dataclass(frozen=True, slots=True)
class Layer:
    """The rows of a partition from one older generation: `above < sequence number ≤ upto`."""

    partition: str
    generation: int
    above: int
    upto: int


def layers(connection: sa.Connection, sink: SinkRecord) -> list[Layer]:
    """The layers of every lane that builds on older generations, whether it has delivered rows itself or not."""
    if sink.generation == 1:
        return []
    lanes = connection.execute(
        sa.select(lane.c.partition, lane.c.builds_on).where(*of_sink(sink), lane.c.builds_on.is_not(None))
    ).all()
    return [layer for r in lanes for layer in _layers(connection, sink, r.partition, int(r.builds_on))]


def _layers(connection: sa.Connection, sink: SinkRecord, partition: str, upto: int) -> Iterator[Layer]:
    for generation, older, bound in _older(connection, sink, partition):
        began = _first_start(connection, [LaneId(one.id) for one in older]) if bound is None else bound
        if began is not None and began < upto:
            yield Layer(partition, generation, began, upto)
        upto = upto if bound is None else min(upto, bound)


def _first_start(connection: sa.Connection, of: Collection[LaneId]) -> int | None:
    """The sequence number after which the first intent of these lanes starts; None if they never had one."""
    query = sa.select(sa.func.min(sa.func.coalesce(intent.c.after, 0))).where(intent.c.lane_id.in_(of))
    start: int | None = connection.execute(query).scalar_one()
    return start


def foundations(connection: sa.Connection, sink: SinkRecord, partitions: Collection[str]) -> list[Foundation]:
    """The foundations of those lanes that build on an older generation and have delivered no rows themselves."""
    landed = intents.last_landed(connection, sink)
    builds = sa.select(lane.c.id, lane.c.partition, lane.c.builds_on).where(
        *of_sink(sink), lane.c.builds_on.is_not(None)
    )
    lanes = list(rows_with(connection, builds, lane.c.partition_hash, map(partition_hash, partitions)))
    below = [_foundation(connection, sink, r.partition, r.builds_on) for r in lanes if r.id not in landed]
    return sorted((f for f in below if f is not None), key=lambda f: f.partition)


def _foundation(connection: sa.Connection, sink: SinkRecord, partition: str, below: int) -> Foundation | None:
    # The previous generation may have delivered none of the rows, and build on an older one itself.
    for generation, older, bound in _older(connection, sink, partition):
        for one in older:
            if ranges := _last_ranges(connection, LaneId(one.id), below):
                return Foundation(partition, generation, LaneId(one.id), int(one.builds_on or 0), ranges)
        below = below if bound is None else min(below, bound)
    return None


def _older(
    connection: sa.Connection, sink: SinkRecord, partition: str
) -> Iterator[tuple[int, Sequence[Any], int | None]]:
    """Yields each older generation that the lane builds on, newest first; with the lane's records in it, newest first
    (a sink that was removed and added again has several), and the sequence number up to which it builds on a still
    older generation."""
    for generation in range(sink.generation - 1, 0, -1):
        records = connection.execute(
            sa.select(lane.c.id, lane.c.builds_on)
            .join_from(lane, sink_table, sink_table.c.id == lane.c.sink_id)
            .where(
                sink_table.c.instance == sink.instance,
                lane.c.generation == generation,
                lane.c.partition_hash == partition_hash(partition),
            )
            .order_by(lane.c.id.desc())
        ).all()
        bound = min((int(one.builds_on) for one in records if one.builds_on is not None), default=None)
        yield generation, records, bound
        if bound is None:
            return


def _landed_up_to(below: int) -> tuple[sa.ColumnElement[bool], ...]:
    with_rows = sa.or_(chunk.c.row_count.is_(None), chunk.c.row_count > 0)
    return chunk.c.hi <= below, chunk.c.state == "landed", with_rows


def _last_ranges(connection: sa.Connection, of: LaneId, below: int) -> tuple[SeqRange, ...]:
    landed = (chunk.c.lane_id == of, *_landed_up_to(below))
    last = sa.select(chunk.c.intent_id).where(*landed).order_by(chunk.c.hi.desc()).limit(1).scalar_subquery()
    rows = connection.execute(
        sa.select(chunk.c.lo, chunk.c.hi).where(*landed, chunk.c.intent_id == last).order_by(chunk.c.lo)
    )
    return tuple(SeqRange(Seq(r.lo), Seq(r.hi)) for r in rows)


def all_below(connection: sa.Connection, sink: SinkRecord, of: Lane) -> list[tuple[int, list[SeqRange]]]:
    """For each generation that a lane builds on, all ranges with rows that it delivered."""
    below, result = of.builds_on, []
    for generation, older, bound in _older(connection, sink, of.partition):
        if below is None:
            break
        of_generation = (chunk.c.lane_id.in_([one.id for one in older]), chunk.c.lo > (bound or 0))
        query = sa.select(chunk.c.lo, chunk.c.hi).where(*of_generation, *_landed_up_to(below))
        ranges = {SeqRange(Seq(r.lo), Seq(r.hi)) for r in connection.execute(query)}
        result.append((generation, sorted(ranges)))
        below = seq_or_none(bound)
    return result
