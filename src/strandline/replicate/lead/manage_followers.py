"""Registers followers at their leader, and removes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from strandline.core import failpoints
from strandline.core.errors import StrandlineError
from strandline.core.records.audit_events import Event
from strandline.core.roles import Role
from strandline.core.sites.replication import OnLag
from strandline.iceberg.lake_tables import CatalogAccess
from strandline.iceberg.metadata.identifier import full_name
from strandline.iceberg.metadata.table_metadata import FOLLOWER_PREFIX, followed_properties
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets, sequence
from strandline.ledger.receive import tokens
from strandline.ledger.replicate import followers, sites
from strandline.ledger.replicate.followers import NewFollower, RegisteredFollower
from strandline.ledger.witness import Witness

if TYPE_CHECKING:
    from strandline.replicate.lead.lease import SiteLease


def token_name(follower: str) -> str:
    return f"follower-{follower}"


@dataclass(frozen=True, slots=True)
class Followers:
    ledger: Ledger
    witness: Witness
    tables: CatalogAccess
    lease: SiteLease | None = None  # None: there is no arbiter

    def add(
        self,
        name: str,
        only: Sequence[str] | None = None,
        *,
        on_lag: OnLag = OnLag.HOLD,
        drop_after: timedelta | None = None,
    ) -> tuple[RegisteredFollower, str]:
        """Returns the follower and its secret, which cannot be read again. `only`: the datasets that it follows; None:
        all, also later ones. Raises NotLeader, and ResyncNeeded.

        The tables record the follower first, in case the ledger is lost. Then one transaction adds follower and token,
        and takes a sequence number: if the ledger is restored from before, that is noticed, and its resync finds the
        follower on the tables. A follower that was found on the tables gets a token here."""
        followers.check_name(name)
        self._record_on_tables(name, only)
        with self.ledger.write() as connection:
            sequence.lock(connection)
            sites.check_leads(connection)
            chosen = None if only is None else [datasets.get(connection, full_name(d)) for d in only]
            # Tokens from when this site led before.
            for owner in followers.list_tokens_of_removed(connection, name):
                tokens.revoke_line(connection, owner)
            token, secret = tokens.create(
                connection, token_name(name), None if chosen is None else [d.name for d in chosen], role=Role.REPLICATE
            )
            follows = None if chosen is None else tuple(d.uuid for d in chosen)
            new = NewFollower(name, token.id, follows, on_lag, drop_after)
            made = followers.add(connection, new)
            audit.record(
                connection, Event.FOLLOWER_ADDED, follower=name, token=token.name, on_lag=on_lag, drop_after=drop_after,
                datasets=None if chosen is None else [d.name for d in chosen],
            )  # fmt: skip
            sequence.take(connection, self.witness, 1, step="registration")
        return made, secret

    def _record_on_tables(self, name: str, only: Sequence[str] | None) -> None:
        """Records the follower on the tables that it follows. A table that cannot be read now, or is made later,
        records it before it is first offered."""
        with self.ledger.read() as connection:
            followers.check_free(connection, name)
            known = datasets.list_datasets(connection)
            chosen = known if only is None else [datasets.get(connection, full_name(d)) for d in only]
        for dataset in chosen:
            with suppress(StrandlineError):
                self.tables.catalog.set_properties(dataset.name, followed_properties([name]))
        failpoints.hit("follower.after_record")

    def list(self) -> list[RegisteredFollower]:
        return self.ledger.query(followers.list_followers)

    def get(self, name: str) -> RegisteredFollower:
        return self.ledger.query(followers.get, name)

    def remove(self, name: str) -> RegisteredFollower:
        """From now on, retention keeps nothing for the follower, and its token is refused. Its own copy stays. With an
        arbiter, it is removed from the record's members first: raises StorageError if the arbiter does not answer."""
        if self.lease is not None:
            # Marked first: otherwise another process could make it a member again between the two steps below.
            self.ledger.change(followers.begin_removal, name)
            failpoints.hit("removal.after_mark")
            self.lease.write_off()
            failpoints.hit("removal.after_write_off")
        with self.ledger.write() as connection:
            found = followers.get(connection, name)
            followers.remove(connection, found)
            revoked = [] if found.token is None else tokens.revoke_line(connection, found.token)
            audit.record(connection, Event.FOLLOWER_REMOVED, follower=name, tokens=revoked)
            known = [d.name for d in datasets.list_datasets(connection) if found.follows(d.uuid)]
        failpoints.hit("removal.after_commit")
        # After the ledger. If the ledger is lost, a table that still says `added` brings the follower back: retention
        # then keeps more than it must.
        for dataset in known:
            with suppress(StrandlineError):
                self.tables.catalog.set_properties(dataset, {f"{FOLLOWER_PREFIX}{name}": "removed"})
        return found
