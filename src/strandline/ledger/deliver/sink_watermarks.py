"""Up to where each sink of a dataset certainly has every row that is meant for it."""

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
    mark: Seq | None  # the sink certainly has everything up to here that is meant for it


def certain(connection: sa.Connection, dataset: DatasetId) -> dict[str, Seq | None]:
    """The same by name of the sink."""
    return {at.name: at.mark for at in marks(connection, dataset)}


def marks(connection: sa.Connection, dataset: DatasetId) -> list[SinkMark]:
    """For every sink that was not removed (paused and stopped ones too), the lowest watermark of its lanes. It is never
    above `planned`, because rows of a partition without a lane are in no plan yet. Rows before a sink's start are not
    meant for it."""
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
