"""The lease of a leader. It belongs to the site; each process that commits rows renews it by itself.

A put that landed gives this process the lease, counted from before the put was sent: whoever takes over counts from
when it first saw that record, which is later. To read a record that another process of this site has put would give
nothing: nobody knows when it was put.
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
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded, PutRefused, PutUnknown, Seen
from strandline.replicate.lead.lease_plan import Contradicts, LeadingSite, Members, Replaced, renewed
from strandline.replicate.site_name import site_name

_RENEWED_MEANWHILE = RetryPolicy(0.1, 0.1, attempts_max=10)  # by other processes of this site


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
        self._seen: Seen | None = None
        self._renewed_at: float | None = None  # None: this process has no lease
        self._term: int | None = None  # in which it has it

    # --- for those who show it ---

    @property
    def seconds(self) -> float:
        return self._settings.lease_seconds

    @property
    def seconds_left(self) -> float | None:
        """For how long this process may take rows without another answer; None: it has no lease."""
        age = self._age()
        return None if age is None else max(0.0, self.seconds - age)

    # --- for those who commit rows ---

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
        since = "this process has not reached the arbiter yet" if age is None else f"{age:.0f} seconds ago"
        said = f"the last lease was renewed {since}" if age is not None else since
        why = "" if cause is None else f": {cause.message}"
        return LeaseOver(
            f"this site must not take rows: {said}, and the lease is {limit:g} seconds{why}",
            hint=f"Another site may lead by now. It goes on as soon as the arbiter ({self._arbiter.place}) answers.",
        )

    # --- renewing ---

    def renew(self, site: Site | None = None, members: Members = lambda named: named) -> Seen:
        """Puts the record anew. Raises `NotLeader` if another site has a higher term, StorageError if the arbiter does
        not answer."""
        site = site or self._ledger.query(sites.get)
        with self._renewing:
            for _ in _RENEWED_MEANWHILE.attempts():
                began = self._clock()
                seen = self._seen or self._arbiter.read()
                wanted = renewed(self._leader(site), None if seen is None else seen.record, members)
                if isinstance(wanted, Replaced | Contradicts):
                    self._give_up(wanted)
                match self._arbiter.put(wanted, over=seen):
                    case PutLanded(now):
                        self._seen, self._renewed_at, self._term = now, began, site.term
                        return now
                    case PutRefused(now):
                        self._seen = now
                    case PutUnknown(error):
                        self._seen = None
                        raise error
        raise StorageError("the arbiter's record changes faster than this process can renew it", hint="Try again.")

    # --- members ---

    def tend_members(self) -> frozenset[int]:
        """Renews the lease, and names as members those who may be promoted: first they are waited for, then they are
        written into the record. Removed followers are removed from the members."""
        with self._ledger.write() as connection:
            members.wait_for_all(connection)
        named = self.renew(members=self._chosen).record.members
        if named != self._ledger.query(members.stored):
            with self._ledger.write() as connection:
                members.store(connection, named)
        return frozenset(m.number for m in named)

    def _chosen(self, before: frozenset[Member]) -> frozenset[Member]:
        """Reads the ledger after the record that the put goes over. So a put that lands names nobody whose removal
        began before that record was written: whoever writes a follower off puts a record after it is marked."""
        with self._ledger.read_at_once() as connection:
            return members.choose(connection, before, sinks_wait=self._sinks_wait)

    def write_off(self) -> None:
        """Whoever is about to be removed may not be promoted any more, nor may who is unknown to the ledger."""
        self.renew(members=lambda before: before & self._ledger.query(members.candidates).keys())

    def _leader(self, site: Site) -> LeadingSite:
        if site.own_number is None:
            raise RefusedError("this site has no number")
        settings = self._settings
        return LeadingSite(self._lake, site.term, site.own_number, self._name, settings.address, settings.lease_seconds)

    def _give_up(self, found: Replaced | Contradicts) -> NoReturn:
        self._seen, self._renewed_at = None, None
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
            f"site {by.name} {'leads' if by.leads else 'takes over'} in term {by.term}; this site takes no more rows",
            hint=f"`strandline rejoin {by.address or 'LEADER'}` makes this site follow it.",
        )

    def run(self, control: LoopControl) -> None:
        """Renews until it is asked to stop: a leader that takes no rows is alive, too. Followers that have caught up
        become members."""

        def work() -> None:
            if self._ledger.query(sites.get).leads:
                self.tend_members()

        control.repeat(work, name="lease", poll_seconds=self._settings.lease_seconds / 3)
