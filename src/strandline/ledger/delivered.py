"""How far each sink of a dataset certainly has everything that it is to have."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.ledger.schema import lane, sink
from strandline.ledger.sinks import seq_or_none
from strandline.types import DatasetId, Seq


def certain(connection: sa.Connection, dataset: DatasetId) -> dict[str, Seq | None]:
    """By name, of sinks that were not removed, paused and stopped ones too: the lowest mark of all their lanes, and
    never above what was planned, since rows of a partition without a lane are in no plan yet. What lies before a
    sink's start it is not to have."""
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
        sa.select(sink.c.name, sink.c.planned, lowest.c.mark)
        .join_from(
            sink,
            lowest,
            (lowest.c.sink_id == sink.c.id) & (lowest.c.generation == sink.c.generation),
            isouter=True,
        )
        .where(sink.c.dataset_id == dataset, sink.c.removed_at.is_(None))
    )
    found: dict[str, Seq | None] = {}
    for row in rows:
        marks = [0 if row.planned is None else row.planned, *([] if row.mark is None else [row.mark])]
        found[row.name] = seq_or_none(min(marks) or None)
    return found
