"""The clock at the last retention of a dataset, and the times that other processes recorded."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.types import DatasetId
from strandline.ledger.engine import upsert
from strandline.ledger.schema.core import UtcMicros, block, micros
from strandline.ledger.schema.maintain import clock, maintenance_run


def get(connection: sa.Connection, dataset: DatasetId) -> tuple[datetime, str | None, int | None] | None:
    """The wall clock, the id of the machine's boot, and its uptime in microseconds."""
    row = connection.execute(sa.select(clock).where(clock.c.dataset_id == dataset)).one_or_none()
    return None if row is None else (row.wall, row.boot, row.boottime_us)


def put(
    connection: sa.Connection, dataset: DatasetId, wall: datetime, boot: str | None, boottime_us: int | None
) -> None:
    upsert(connection, clock, {"dataset_id": dataset}, wall=wall, boot=boot, boottime_us=boottime_us)


def _recorded() -> sa.CompoundSelect[Any]:
    """All recorded times, in microseconds: changes of blocks, and starts of maintenance runs that were not
    skipped (a run may have been skipped because of the clock)."""
    runs = sa.select(sa.type_coerce(maintenance_run.c.started_at, sa.BigInteger).label("at")).where(
        maintenance_run.c.ended_at.is_not(None), maintenance_run.c.outcome != "skipped"
    )
    return sa.union_all(sa.select(sa.type_coerce(block.c.changed_at, sa.BigInteger).label("at")), runs)


def times_around_longest_gap(connection: sa.Connection, since: datetime | None, now: datetime) -> list[datetime]:
    """Returns, in order, the newest recorded time and, between `since` and `now`, the recorded times before and after
    the longest gap. Without `since`, only the newest."""
    recorded = _recorded().subquery("recorded")
    newest = connection.execute(sa.select(sa.type_coerce(sa.func.max(recorded.c.at), UtcMicros()))).scalar()
    if newest is None or since is None:
        return [] if newest is None else [newest]
    ends = [sa.literal(micros(m), sa.BigInteger) for m in (since, now)]
    inside = sa.select(recorded.c.at).where(recorded.c.at > ends[0], recorded.c.at < ends[1])
    moments = sa.union_all(inside, *(sa.select(end) for end in ends)).subquery("moments")
    at = moments.c.at
    steps = sa.select(at, sa.func.lag(at).over(order_by=at).label("before")).subquery("steps")
    gap = connection.execute(
        sa.select(sa.type_coerce(steps.c.before, UtcMicros()), sa.type_coerce(steps.c.at, UtcMicros()))
        .where(steps.c.before.is_not(None))
        .order_by((steps.c.at - steps.c.before).desc(), steps.c.at)
        .limit(1)
    ).one_or_none()
    return sorted({newest, *([] if gap is None else [m for m in gap if m != now])})


def database_now(connection: sa.Connection) -> datetime | None:
    """The database server's own clock; None for SQLite, which has the clock of this machine."""
    if connection.dialect.name != "postgresql":
        return None
    now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    return now


def skipped_before(connection: sa.Connection, dataset: DatasetId, *, runs_max: int) -> list[datetime]:
    """When the runs of retention began that were skipped since the last one that was not, oldest first. Dry runs do not
    count."""
    query = (
        sa.select(maintenance_run.c.outcome, maintenance_run.c.started_at)
        .where(
            maintenance_run.c.dataset_id == dataset, maintenance_run.c.kind == "retain",
            maintenance_run.c.dry_run.is_(False), maintenance_run.c.ended_at.is_not(None),
        )
        .order_by(maintenance_run.c.id.desc())
        .limit(runs_max)
    )  # fmt: skip
    last = itertools.takewhile(lambda r: r.outcome == "skipped", connection.execute(query).all())
    return [r.started_at for r in last][::-1]
