"""The lease of a leader. It belongs to the site; each process that commits rows renews it for itself.

A put that landed gives this process the lease, counted from before the put was sent. A site that takes over counts from
when it first read that record, which is later. A record that another process of this site has put gives this process no
lease: it is unknown when it was put.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

from strandline.core.clock import elapsed_seconds
from strandline.core.errors import LeaseOver, NotLeader, RefusedError, StorageError
from strandline.core.records.audit_events import Event
from strandline.core.retry import RetryPolicy
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.sites.arbiter import Member
from strandline.jobs.loop import LoopControl
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.replicate import members, sites
from strandline.ledger.replicate.sites import Site
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded, PutRefused, PutUnknown, VersionedRecord
from strandline.replicate.lead.lease_plan import Contradicts, LeadingSite, Members, Replaced, renewed
from strandline.replicate.site_name import site_name

_RENEWED_MEANWHILE = RetryPolicy(0.1, 0.1, attempts_max=10)  # after a put by another process of this site


class SiteLease:
    """Thread-safe. Implements `ledger.write_right.WriteRight`."""

    def __init__(
        self,
        lake: str,
        config: LakeConfig,
        ledger: Ledger,
        arbiter: Arbiter,
        *,
        clock: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._lake = lake
        self._settings = config.settings.replication
        self._sinks_wait = config.settings.deliver.wait_for == "all"
        self._name = site_name(config)
        self._ledger = ledger
        self._arbiter = arbiter
        self._clock = clock
        self._renewing = threading.Lock()
        self._record: VersionedRecord | None = None
        self._renewed_at: float | None = None  # None: this process has no lease
        self._term: int | None = None  # in which it has it

    # --- for status ---

    @property
    def seconds(self) -> float:
        return self._settings.lease_seconds

    @property
    def seconds_left(self) -> float | None:
        """For how long this process may accept rows without renewing; None: it has no lease."""
        age = self._age()
        return None if age is None else max(0.0, self.seconds - age)

    # --- `WriteRight` ---

    def obtain(self) -> None:
        site = self._ledger.query(sites.get)
        if not site.leads:
            return  # the ledger itself refuses its batches
        age = self._age()
        if self._term == site.term and age is not None and age < self._settings.lease_seconds / 3:
            return
        try:
            self.renew(site)
        except StorageError as e:
            if self._term != site.term or not self._holds():
                raise self._over(e) from e

    def check(self) -> None:
        if not self._holds():
            raise self._over(None)

    def _age(self) -> float | None:
        return None if self._renewed_at is None else self._clock() - self._renewed_at

    def _holds(self) -> bool:
        age = self._age()
        return age is not None and age < self._settings.lease_seconds

    def _over(self, cause: StorageError | None) -> LeaseOver:
        age, limit = self._age(), self._settings.lease_seconds
        renewed = f"its last lease was renewed {age:.0f} seconds ago" if age is not None else "it has no lease yet"
        why = "" if cause is None else f": {cause.message}"
        return LeaseOver(
            f"this process must not accept rows: {renewed}, and a lease is {limit:g} seconds{why}",
            hint="Another site may lead by now. If this one still leads, it accepts rows again as soon as the arbiter "
            f"({self._arbiter.place}) answers.",
        )

    # --- renewing ---

    def renew(self, site: Site | None = None, members: Members = lambda named: named) -> VersionedRecord:
        """Puts the record again, with the members that `members` returns. Raises `NotLeader` if another site has a
        higher term, StorageError if the arbiter does not answer."""
        site = site or self._ledger.query(sites.get)
        with self._renewing:
            for _ in _RENEWED_MEANWHILE.attempts():
                began = self._clock()
                record = self._record or self._arbiter.read()
                wanted = renewed(self._leader(site), None if record is None else record.record, members)
                if isinstance(wanted, Replaced | Contradicts):
                    self._give_up(wanted)
                match self._arbiter.put(wanted, over=record):
                    case PutLanded(now):
                        self._record, self._renewed_at, self._term = now, began, site.term
                        return now
                    case PutRefused(now):
                        self._record = now
                    case PutUnknown(error):
                        self._record = None
                        raise error
        raise StorageError("the arbiter's record changes faster than this process can renew it", hint="Try again.")

    # --- members ---

    def update_members(self) -> frozenset[int]:
        """Renews the lease, with the followers that may be promoted as members in the record. Before a follower becomes
        a member, sinks wait for it. Removed followers are no members any more."""
        with self._ledger.write() as connection:
            members.wait_for_all(connection)
        named = self.renew(members=self._chosen).record.members
        if named != self._ledger.query(members.stored):
            with self._ledger.write() as connection:
                members.store(connection, named)
        return frozenset(m.number for m in named)

    def _chosen(self, before: frozenset[Member]) -> frozenset[Member]:
        """Reads the ledger after the record that the put replaces. So a put that lands names no follower whose removal
        began before that record was written: the removal marks the follower first, and then puts a record."""
        with self._ledger.read_consistent() as connection:
            return members.choose(connection, before, sinks_wait=self._sinks_wait)

    def write_off(self) -> None:
        """Removes followers that are being removed, or are unknown to the ledger, from the record's members: they may
        not be promoted any more."""
        self.renew(members=lambda before: before & self._ledger.query(members.candidates).keys())

    def _leader(self, site: Site) -> LeadingSite:
        if site.own_number is None:
            raise RefusedError("this site has no number")
        settings = self._settings
        return LeadingSite(self._lake, site.term, site.own_number, self._name, settings.address, settings.lease_seconds)

    def _give_up(self, found: Replaced | Contradicts) -> NoReturn:
        self._record, self._renewed_at = None, None
        by = found.by
        if isinstance(found, Contradicts):
            raise NotLeader(
                f"site {by.name} leads in term {by.term}, too: both sites have number {by.site}",
                hint="Two sites of a lake must not have the same number: one of them is a copy of the other.",
            )
        if by.leads:
            with self._ledger.write() as connection:
                if sites.supersede(connection, term=by.term, by=by.address or by.name):
                    audit.record(connection, Event.SITE_SUPERSEDED, term=by.term, by=by.name, address=by.address)
        raise NotLeader(
            f"site {by.name} {'leads' if by.leads else 'takes over'} in term {by.term}; this site accepts no more rows",
            hint=f"`strandline rejoin {by.address or 'LEADER'}` makes this site follow it.",
        )

    def run(self, control: LoopControl) -> None:
        """Renews the lease until `control` stops it, also while no rows come. Followers that have caught up become
        members."""

        def work() -> None:
            if self._ledger.query(sites.get).leads:
                self.update_members()

        control.repeat(work, name="lease", poll_seconds=self._settings.lease_seconds / 3)
