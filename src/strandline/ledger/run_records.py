"""Records of runs: of maintenance, of the reconciler, and tasks.

A run without an end is under way. Only its record can change: a process that was wrongly taken for dead finds that
another one has written the end of its run. Every process can call a run off: the run sees this at its next heartbeat,
and at its next durable step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from strandline.core.errors import NoSuchRun
from strandline.ledger.actor_columns import actor_values
from strandline.ledger.engine import utc_now

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Renewed:
    stop_asked: bool  # the run was called off


@dataclass(frozen=True)
class RunTable(Generic[R]):
    table: sa.Table
    rows: sa.Select[Any]  # with all columns that `read` needs
    read: Callable[[sa.Connection, Sequence[Any]], list[R]]
    command: str  # the command that lists the stored runs

    @property
    def running(self) -> sa.ColumnElement[bool]:
        return self.table.c.ended_at.is_(None)

    def add(self, connection: sa.Connection, **values: object) -> int:
        """Stores a run of the current actor; returns its id."""
        inserted = self.table.insert().values(**values, **actor_values()).returning(self.table.c.id)
        return int(connection.execute(inserted).scalar_one())

    def change(self, connection: sa.Connection, run: int, **values: object) -> bool:
        """Stores the values. False, without a change, if the run has ended: another process took it for dead."""
        own = (self.table.c.id == run, self.running)
        return connection.execute(self.table.update().where(*own).values(**values)).rowcount == 1

    def renew(self, connection: sa.Connection, *own: sa.ColumnElement[bool], **values: object) -> Renewed | None:
        """Stores the heartbeat of the run that `own` selects. None if it has ended: another process took it for
        dead."""
        stop_asked_at = self.table.c.stop_asked_at
        changed = self.table.update().where(*own, self.running).values(**values).returning(stop_asked_at)
        row = connection.execute(changed).one_or_none()
        return None if row is None else Renewed(row.stop_asked_at is not None)

    def ask_to_stop(self, connection: sa.Connection, run: int) -> bool:
        """Calls a run off. False, without a change, if it has ended or was called off before."""
        own = (self.table.c.id == run, self.running, self.table.c.stop_asked_at.is_(None))
        return connection.execute(self.table.update().where(*own).values(stop_asked_at=utc_now())).rowcount == 1

    def get(self, connection: sa.Connection, run: int) -> R:
        runs = self.latest(connection, self.table.c.id == run, runs_max=1)
        if not runs:
            raise NoSuchRun(f"there is no run {run}", hint=f"`{self.command}` lists the stored ones.")
        return runs[0]

    def latest(self, connection: sa.Connection, *where: sa.ColumnElement[bool], runs_max: int) -> list[R]:
        """Newest first."""
        newest = self.rows.where(*where).order_by(self.table.c.id.desc()).limit(runs_max)
        return self.read(connection, connection.execute(newest).all())

    def newest_ids(self, *where: sa.ColumnElement[bool], runs_max: int) -> sa.Select[Any]:
        return sa.select(self.table.c.id).where(*where).order_by(self.table.c.id.desc()).limit(runs_max)
