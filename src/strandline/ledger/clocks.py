"""The last moment that retention of a dataset saw."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from strandline.ledger.engine import insert_into
from strandline.ledger.schema import block
from strandline.ledger.schema_maintain import clock, maintenance_run
from strandline.types import DatasetId


def get(connection: sa.Connection, dataset: DatasetId) -> tuple[datetime, str | None, int | None] | None:
    """The wall clock, which boot of a machine it was, and for how long it had been up, in microseconds."""
    row = connection.execute(sa.select(clock).where(clock.c.dataset_id == dataset)).one_or_none()
    return None if row is None else (row.wall, row.boot, row.boottime_us)


def put(
    connection: sa.Connection, dataset: DatasetId, wall: datetime, boot: str | None, boottime_us: int | None
) -> None:
    values = {"wall": wall, "boot": boot, "boottime_us": boottime_us}
    new = insert_into(connection, clock).values(dataset_id=dataset, **values)
    connection.execute(new.on_conflict_do_update(index_elements=["dataset_id"], set_=values))


def newest(connection: sa.Connection) -> datetime | None:
    """The newest moment that anybody recorded: a block that was settled, or the beginning of a run of maintenance that
    was not skipped (one that was may have been for the clock)."""
    runs = sa.select(sa.func.max(maintenance_run.c.started_at)).where(
        maintenance_run.c.ended_at.is_not(None), maintenance_run.c.outcome != "skipped"
    )
    found = [connection.execute(sa.select(sa.func.max(block.c.changed_at))).scalar(), connection.execute(runs).scalar()]
    return max((f for f in found if f is not None), default=None)
