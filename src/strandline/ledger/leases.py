"""Leases: which process may act on a row of the ledger (a sink, a batch of received bodies, the reconciler).

A lease is a token and a time limit, in two columns of the row. Every process can take over an expired lease; until one
does, the holder still has it. The lease becomes a fence when the holder checks it (`holds`) in the transaction that
writes: the check locks the row until the transaction ends, so no process can take the lease over in between.

Blocks have their own kind of lease (`ingest/blocks.py`), whose fence is a number that recovery raises.
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
    """The columns in which a table stores the leases of its rows."""

    def __init__(
        self,
        token: sa.Column[Any],
        until: sa.Column[Any],
        *leasable: sa.ColumnElement[bool],
        fence: sa.Column[Any] | None = None,
    ) -> None:
        """`leasable`: the condition for rows that can have a lease. `fence`: a number that rises with each holder."""
        self._table: sa.Table = token.table
        self._id = self._table.c.id
        self._token, self._until, self._leasable = token, until, leasable
        self._rises = {} if fence is None else {fence: fence + 1}
        self._holder = (
            sa.select(token).where(self._id == sa.bindparam("row"), *leasable).with_for_update(key_share=True)
        )
        self.no_lease: dict[str, Any] = {token.name: None, until.name: None}  # the values of a row without a lease

    def is_free(self, now: datetime) -> sa.ColumnElement[bool]:
        return sa.or_(self._until.is_(None), self._until <= now)

    def take(self, ledger: Ledger, row: int, *, seconds: float) -> Lease | None:
        """Returns None while another process's lease runs. Taking over an expired lease fences off its holder."""
        return ledger.change(self._give, row, self.is_free(utc_now()), seconds=seconds)

    def seize(self, ledger: Ledger, row: int, *, seconds: float) -> Lease | None:
        """Takes the lease from its holder, and fences the holder off. None if the row can have no lease."""
        return ledger.change(self._give, row, seconds=seconds)

    def _give(
        self, connection: sa.Connection, row: int, *where: sa.ColumnElement[bool], seconds: float
    ) -> Lease | None:
        lease = Lease(row, uuid4().hex)
        given = {self._token: lease.token, self._until: _in(seconds), **self._rises}
        changed = connection.execute(self._table.update().where(self._id == row, *self._leasable, *where).values(given))
        return lease if changed.rowcount == 1 else None

    def give_all(self, connection: sa.Connection, rows: Iterable[int], *, seconds: float) -> dict[int, Lease]:
        """Gives the leases of all rows to one holder, with one token. The caller has locked the rows, and found their
        leases free."""
        token, until = uuid4().hex, _in(seconds)
        given: dict[int, Lease] = {}
        for part in slices(rows):
            connection.execute(
                self._table.update().where(self._id.in_(part)).values({self._token: token, self._until: until})
            )
            given |= {row: Lease(row, token) for row in part}
        return given

    def renew(self, ledger: Ledger, lease: Lease, *, seconds: float) -> bool:
        """Extends the lease, even an expired one, unless another process has taken it over."""
        return ledger.change(self._change, lease, {self._until.name: _in(seconds)})

    def release(self, ledger: Ledger, lease: Lease) -> bool:
        return ledger.change(self._change, lease, self.no_lease)

    def _change(self, connection: sa.Connection, lease: Lease, values: dict[str, Any]) -> bool:
        own = (self._id == lease.row, *self._leasable, self._token == lease.token)
        return connection.execute(self._table.update().where(*own).values(values)).rowcount == 1

    def release_all(self, connection: sa.Connection) -> int:
        """Ends all leases. Returns how many were held."""
        held = self._token.is_not(None)
        return int(connection.execute(self._table.update().where(held).values(self.no_lease)).rowcount)

    def holds(self, connection: sa.Connection, lease: Lease) -> bool:
        """The fence. It ignores the clock: an expired lease that no other process has taken over still counts."""
        return bool(connection.execute(self._holder, {"row": lease.row}).scalar() == lease.token)


def _in(seconds: float) -> datetime:
    return utc_now() + timedelta(seconds=seconds)
