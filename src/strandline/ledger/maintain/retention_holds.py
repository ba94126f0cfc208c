"""Rows that the last run of retention held back because a sink does not have them yet, per sink."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import SinkId
from strandline.core.types import DatasetId, Seq
from strandline.ledger.engine import from_row, insert_into
from strandline.ledger.schema.core import sink
from strandline.ledger.schema.maintain import hold


@dataclass(frozen=True, slots=True)
class Hold:
    sink: SinkId | None  # None: a sink of the leader, at a site that follows
    name: str
    rows: int | None  # None if they were not counted
    since: datetime
    up_to: Seq


def of_dataset(connection: sa.Connection, id: DatasetId) -> list[Hold]:
    """The holds of sinks that were not removed: a removed sink holds nothing."""
    return [_hold(r) for r in connection.execute(_HOLDS.where(hold.c.dataset_id == id))]


def by_dataset(connection: sa.Connection) -> dict[DatasetId, list[Hold]]:
    """The holds of every dataset that has some."""
    holds: dict[DatasetId, list[Hold]] = {}
    for r in connection.execute(_HOLDS):
        holds.setdefault(DatasetId(r.dataset_id), []).append(_hold(r))
    return holds


_HOLDS = (
    sa.select(hold, sink.c.name)
    .join_from(hold, sink, sink.c.id == hold.c.sink_id)
    .where(sink.c.removed_at.is_(None))
    .order_by(sink.c.name)
)


def _hold(row: Any) -> Hold:
    return from_row(Hold, row, sink=row.sink_id)


def keep(
    connection: sa.Connection, id: DatasetId, sink_id: SinkId, *, rows: int | None, up_to: Seq, now: datetime
) -> bool:
    """Stores the hold; True if it is new. `since` stays the time of the first run that found it."""
    before = connection.execute(
        sa.select(hold.c.since).where(hold.c.dataset_id == id, hold.c.sink_id == sink_id)
    ).scalar_one_or_none()
    new = insert_into(connection, hold).values(dataset_id=id, sink_id=sink_id, rows=rows, since=now, up_to=up_to)
    connection.execute(
        new.on_conflict_do_update(index_elements=["dataset_id", "sink_id"], set_={"rows": rows, "up_to": up_to})
    )
    return before is None


def forget(connection: sa.Connection, sink_id: SinkId) -> None:
    """Deletes the holds of a sink that begins a new generation."""
    connection.execute(hold.delete().where(hold.c.sink_id == sink_id))


def release(connection: sa.Connection, id: DatasetId, *, but: Collection[SinkId] = ()) -> list[str]:
    """Deletes the holds of the dataset, except for those sinks. Returns the names of the sinks with a deleted hold."""
    others = (hold.c.dataset_id == id, hold.c.sink_id.not_in(list(but)))
    rows = connection.execute(sa.select(sink.c.name).join_from(hold, sink, sink.c.id == hold.c.sink_id).where(*others))
    names = sorted(rows.scalars())
    connection.execute(hold.delete().where(*others))
    return names
