"""`lake.replication`: following a leader, leading with an arbiter, and promotion."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.secrets import read_secret
from strandline.core.sites.replication import SiteRole
from strandline.jobs.loop import LoopControl
from strandline.ledger.engine import Ledger
from strandline.ledger.replicate import sites
from strandline.ledger.replicate.sites import Site
from strandline.ledger.witness import Witness
from strandline.replicate.follow.note_passes import PassNotes

if TYPE_CHECKING:
    from strandline.core.settings.lake_config import LakeConfig
    from strandline.replicate.arbiter.arbiter import Arbiter
    from strandline.replicate.arbiter.watch import ArbiterWatch
    from strandline.replicate.follow.compare_with_leader import DatasetVerdict
    from strandline.replicate.follow.context import SiteParts
    from strandline.replicate.follow.follower import Follower, FollowReport
    from strandline.replicate.lead.lease import SiteLease
    from strandline.replicate.source import LeaderSource
    from strandline.replicate.take_over.promote import Promotion

CHECKPOINT_NAME = "replication-checkpoint.json"


def is_address(leader: str) -> bool:
    """Whether `leader` is a URL; otherwise it is the path of the leader's settings file."""
    return leader.startswith(("http://", "https://"))


def open_source(leader: str, token: str | None) -> LeaderSource:
    secret = None if token is None else read_secret(token)
    if is_address(leader):
        from strandline.replicate.transports.http import HttpSource

        return HttpSource(leader, token=secret)
    from strandline.replicate.transports.shared import SharedSource

    return SharedSource(Path(leader), token=secret)


_LeaderKey = tuple[str | None, str | None, datetime | None, str | None]


def _source_key(site: Site) -> _LeaderKey:
    """Another value when the site follows another leader, follows again after it has led, or gets another token."""
    secret = None if site.leader_token is None else read_secret(site.leader_token)
    return site.leader, site.leader_token, site.changed_at, secret


class Replication:
    """`lake.replication`."""

    def __init__(self, lake_id: str, config: LakeConfig, ledger: Ledger, witness: Witness, parts: SiteParts) -> None:
        self._lake_id = lake_id
        self._config = config
        self._ledger = ledger
        self._witness = witness
        self._parts = parts
        self._notes = PassNotes(ledger)
        self._source_key: _LeaderKey | None = None  # of the source that `follower` has

    @property
    def site(self) -> Site:
        return self._ledger.query(sites.get)

    def check_leads(self) -> None:
        """Raises NotLeader at a follower."""
        self._ledger.query(sites.check_leads)

    def check_follows(self) -> Site:
        """Raises RefusedError at a site that leads, or is about to."""
        return self._ledger.query(sites.check_follows)

    @cached_property
    def follower(self) -> Follower:
        """Raises RefusedError at a site that leads."""
        from strandline.replicate.follow.context import FollowContext
        from strandline.replicate.follow.follower import Follower

        site = self.check_follows()
        self._source_key = _source_key(site)
        source = open_source(site.leader or "", site.leader_token)
        context = FollowContext(
            self._lake_id, self._config, self._ledger, self._witness, source, site.changed_at, self._parts
        )
        return Follower(context, self._config.settings.follow, self._config.home / CHECKPOINT_NAME)

    @cached_property
    def arbiter(self) -> Arbiter | None:
        """None if the settings name none."""
        from strandline.replicate.arbiter.open_arbiter import open_arbiter

        return open_arbiter(self._config, self._lake_id)

    @cached_property
    def lease(self) -> SiteLease | None:
        """The lease that a leader needs to accept rows. None without an arbiter."""
        from strandline.replicate.lead.lease import SiteLease

        arbiter = self.arbiter
        return None if arbiter is None else SiteLease(self._lake_id, self._config, self._ledger, arbiter)

    @cached_property
    def arbiter_watch(self) -> ArbiterWatch | None:
        """For status and metrics. None without an arbiter."""
        from strandline.replicate.arbiter.watch import ArbiterWatch

        seconds = self._config.settings.replication.lease_seconds / 3
        return None if self.arbiter is None else ArbiterWatch(self.arbiter, every_seconds=seconds)

    @property
    def promotion(self) -> Promotion:
        """Makes this site the leader."""
        from strandline.replicate.check_tables import SiteTables
        from strandline.replicate.take_over.promote import Promotion

        tables = SiteTables(self._lake_id, self._ledger, self._parts)
        return Promotion(self._config, self._ledger, self._witness, self._parts, self.arbiter, tables)

    def verify(self) -> list[DatasetVerdict]:
        """Compares every row up to the seal with the leader's."""
        from strandline.replicate.follow.compare_with_leader import verify_leader

        return verify_leader(self._current_follower(self.site).context)

    def follow_once(self) -> FollowReport:
        """Runs one pass: applies everything that the leader offers now."""
        return self._pass(self.site, None)

    def _pass(self, site: Site, stopping: threading.Event | None) -> FollowReport:
        with self._notes.one_pass() as notes:  # opening the follower may fail, too
            return self._current_follower(site).tick(stopping, notes)

    def _current_follower(self, site: Site) -> Follower:
        """Opens the follower again if another process has pointed this site to another leader."""
        if self._source_key != _source_key(site):
            self._close_follower()
        return self.follower

    def _close_follower(self) -> None:
        found: Follower | None = self.__dict__.pop("follower", None)
        if found is not None:
            found.close()

    def follow(
        self,
        control: LoopControl,
        on_pass: Callable[[FollowReport], None] = lambda report: None,
        on_role: Callable[[Site], None] = lambda site: None,
    ) -> None:
        """Follows the leader until `control` stops it. Does nothing while this site leads; each pass reads the role
        again. `on_role` gets the site when its role has changed."""
        role: SiteRole | None = None  # in the last pass

        def work() -> None:
            nonlocal role
            site = self.site
            before, role = role, site.role
            if before is not None and before is not role:
                on_role(site)
            if not site.follows:
                self._close_follower()
                return
            from strandline.replicate.follow.follower import first_failure  # loads Spark's modules

            report = self._pass(site, control.stopping)
            on_pass(report)
            if report.failed:  # the loop then waits longer before the next pass
                raise first_failure(report.failed)

        control.repeat(work, name="follow", poll_seconds=self._config.settings.follow.poll_seconds)

    def close(self) -> None:
        self._close_follower()
