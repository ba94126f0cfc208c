"""How far each sink of a dataset certainly has everything that it is to have."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from strandline.core.delivery_types import SinkId
from strandline.core.types import DatasetId, Seq
from strandline.ledger.deliver.sinks import seq_or_none
from strandline.ledger.schema.core import lane, sink


@dataclass(frozen=True, slots=True)
class SinkMark:
    sink: SinkId
    name: str
    generation: int
    mark: Seq | None
    """It certainly has everything up to here that it is to have."""


def certain(connection: sa.Connection, dataset: DatasetId) -> dict[str, Seq | None]:
    """By name."""
    return {at.name: at.mark for at in marks(connection, dataset)}


def marks(connection: sa.Connection, dataset: DatasetId) -> list[SinkMark]:
    """Of sinks that were not removed, paused and stopped ones too: the lowest mark of all their lanes, and never above
    what was planned, since rows of a partition without a lane are in no plan yet. What lies before a sink's start it is
    not to have."""
    lowest = (
        sa.select(
            lane.c.sink_id,
            lane.c.generation,
            sa.func.min(sa.func.coalesce(lane.c.mark, 0)).label("mark"),
        )
        .group_by(lane.c.sink_id, lane.c.generation)
        .subquery()
    )
    rows = connection.execute(
        sa.select(sink.c.id, sink.c.name, sink.c.generation, sink.c.planned, lowest.c.mark)
        .join_from(
            sink,
            lowest,
            (lowest.c.sink_id == sink.c.id) & (lowest.c.generation == sink.c.generation),
            isouter=True,
        )
        .where(sink.c.dataset_id == dataset, sink.c.removed_at.is_(None))
        .order_by(sink.c.id)
    )
    found: list[SinkMark] = []
    for row in rows:
        reached = [0 if row.planned is None else row.planned, *([] if row.mark is None else [row.mark])]
        found.append(SinkMark(SinkId(row.id), row.name, row.generation, seq_or_none(min(reached) or None)))
    return found
