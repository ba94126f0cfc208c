"""Leases: who may act on a row of the ledger. One implementation for sinks, batches of received bodies, and the
reconciler.

A lease is a token and a time limit, in two columns of the row. One that ran out can be taken over by anybody; until
somebody does, its holder still holds it. It is a fence where whoever acts checks it (`holds`) in the transaction that
writes: that keeps the row until it ends, so that nobody takes the lease over in between.

Blocks have a lease of their own (`ingest/blocks.py`): its fence is a number that recovery raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from strandline.core.types import Lease
from strandline.ledger.engine import Ledger, slices, utc_now


class LeaseColumns:
    """Where a table keeps the leases of its rows."""

    def __init__(
        self,
        token: sa.Column[Any],
        until: sa.Column[Any],
        *leasable: sa.ColumnElement[bool],
        fence: sa.Column[Any] | None = None,
    ) -> None:
        """`leasable`: which rows can have a lease at all. `fence`: a number that rises with each holder."""
        self._table: sa.Table = token.table
        self._id = self._table.c.id
        self._token, self._until, self._leasable = token, until, leasable
        self._rises = {} if fence is None else {fence: fence + 1}
        self._holder = (
            sa.select(token).where(self._id == sa.bindparam("row"), *leasable).with_for_update(key_share=True)
        )
        self.none: dict[str, Any] = {token.name: None, until.name: None}
        """The values of a row that nobody has a lease of."""

    def is_free(self, now: datetime) -> sa.ColumnElement[bool]:
        return sa.or_(self._until.is_(None), self._until <= now)

    def take(self, ledger: Ledger, row: int, *, seconds: float) -> Lease | None:
        """None while another's runs. A lease that ran out is taken over: its holder can record nothing more."""
        with ledger.write() as connection:
            return self._give(connection, row, self.is_free(utc_now()), seconds=seconds)

    def seize(self, ledger: Ledger, row: int, *, seconds: float) -> Lease | None:
        """Whoever has it: its holder can record nothing more. None if the row can have no lease."""
        with ledger.write() as connection:
            return self._give(connection, row, seconds=seconds)

    def _give(
        self, connection: sa.Connection, row: int, *where: sa.ColumnElement[bool], seconds: float
    ) -> Lease | None:
        lease = Lease(row, uuid4().hex)
        given = {self._token: lease.token, self._until: _in(seconds), **self._rises}
        changed = connection.execute(self._table.update().where(self._id == row, *self._leasable, *where).values(given))
        return lease if changed.rowcount == 1 else None

    def give_all(self, connection: sa.Connection, rows: Iterable[int], *, seconds: float) -> dict[int, Lease]:
        """Rows that the transaction has locked, and that are free: all to one holder, with one token."""
        token, until = uuid4().hex, _in(seconds)
        given: dict[int, Lease] = {}
        for some in slices(rows):
            connection.execute(
                self._table.update().where(self._id.in_(some)).values({self._token: token, self._until: until})
            )
            given |= {row: Lease(row, token) for row in some}
        return given

    def renew(self, ledger: Ledger, lease: Lease, *, seconds: float) -> bool:
        """As long as nobody took it over, even if it ran out meanwhile."""
        with ledger.write() as connection:
            return self._change(connection, lease, {self._until.name: _in(seconds)})

    def release(self, ledger: Ledger, lease: Lease) -> bool:
        with ledger.write() as connection:
            return self._change(connection, lease, self.none)

    def _change(self, connection: sa.Connection, lease: Lease, values: dict[str, Any]) -> bool:
        own = (self._id == lease.row, *self._leasable, self._token == lease.token)
        return connection.execute(self._table.update().where(*own).values(values)).rowcount == 1

    def release_all(self, connection: sa.Connection) -> int:
        """How many were held."""
        held = self._token.is_not(None)
        return int(connection.execute(self._table.update().where(held).values(self.none)).rowcount)

    def holds(self, connection: sa.Connection, lease: Lease) -> bool:
        """The fence. It does not ask the clock: a lease that ran out and that nobody took over still holds."""
        return bool(connection.execute(self._holder, {"row": lease.row}).scalar() == lease.token)


def _in(seconds: float) -> datetime:
    return utc_now() + timedelta(seconds=seconds)
