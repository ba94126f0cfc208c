"""Promotes this site from follower to leader: `promote_plan` plans each step, this module carries it out.

| durable step | if the process dies after it |
|---|---|
| the term to be replaced stored | the next `promote` continues, or ends if another site leads by now |
| term taken in the arbiter | the record names this site: the next `promote` continues; another member may be faster |
| claim stored | the site records and stages nothing; the next `promote` continues, or ends |
| staged blocks published | as any follower does |
| `leads` in the record | only this site can continue |
| rows of recorded cuts set aside and removed | the next `promote` repeats it |
| epoch raised on tables whose purges are given up | the next `promote` repeats it |
| witness replaced | the ledger is not behind: only `promote` continues |
| the transaction | it leads |

A process that was paused and continues cannot put: its record is outdated. Its transaction finds another term, or no
claim.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from strandline.core import failpoints
from strandline.core.calling_off import check_not_called_off
from strandline.core.clock import elapsed_seconds
from strandline.core.errors import (
    BlockHeld,
    BlockLost,
    FailedError,
    RefusedError,
    StorageError,
    StrandlineError,
    WatermarkMoved,
)
from strandline.core.retry import RetryPolicy
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.sites.arbiter import LeaderRecord
from strandline.core.types import BlockId, Dataset, DatasetId, Reserved, Staged
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import promotion_claims, promotion_failures, promotions
from strandline.ledger.replicate.cuts import PreparedCut
from strandline.ledger.replicate.promotions import Led, PromotionState
from strandline.ledger.replicate.sites import Site, describe_successor
from strandline.ledger.witness import Witness
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded, PutUnknown, VersionedRecord
from strandline.replicate.site_name import site_name
from strandline.replicate.take_over.promote_plan import (
    Begin,
    Candidate,
    ClaimTerm,
    End,
    Lead,
    PromoteStep,
    Put,
    Refuse,
    Wait,
    next_step,
    next_step_alone,
)

if TYPE_CHECKING:
    from strandline.ingest.context import IngestContext
    from strandline.replicate.follow.context import SiteParts

_STAGED_MEANWHILE = RetryPolicy(0.0, attempts_max=5)
_POLLS_PER_LEASE = 20
_LEASES_WAITED_MAX = 3  # for a leader that still renews its lease


@dataclass(frozen=True, slots=True)
class Promoted:
    term: int
    led: Led | None  # None: it led before this command

    @property
    def already(self) -> bool:
        return self.led is None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a promotion would do now."""

    step: PromoteStep
    state: PromotionState


class TableCheck(Protocol):
    """`check_tables.SiteTables`."""

    def check(self) -> None:
        """Raises RefusedError if a table lacks what the ledger says that it has."""


@dataclass
class _RecordWatch:
    """Measures for how long this process has read the same record."""

    clock: Callable[[], float]
    seen: VersionedRecord | None = None
    since: float = 0.0
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def seconds_unchanged(self, now: VersionedRecord | None) -> float:
        if now != self.seen:
            self.seen, self.since = now, self.clock()
        return self.clock() - self.since


def _check_not_ended(claim: str | None, state: PromotionState) -> None:
    """Raises RefusedError if the promotion was ended while this process was paused: nobody asked for another one, and
    the site may follow another leader by now."""
    if claim is not None and state.claim != claim:
        raise RefusedError(
            "another process has ended this promotion meanwhile",
            hint="`strandline replication status` shows which site leads. `strandline promote` begins again.",
        )


class Promotion:
    def __init__(
        self,
        config: LakeConfig,
        ledger: Ledger,
        witness: Witness,
        parts: SiteParts,
        arbiter: Arbiter | None,
        tables: TableCheck,
        *,
        clock: Callable[[], float] = elapsed_seconds,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._settings = config.settings.replication
        self._ledger = ledger
        self._witness = witness
        self._parts = parts
        self._arbiter = arbiter
        self._tables = tables
        self._clock = clock
        self._sleep = sleep

    def forecast(self, *, leader_is_stopped: bool, force: bool = False) -> Forecast:
        """Changes nothing. Raises RefusedError at a site that leads, StorageError if the arbiter does not answer."""
        state = self._read_state()
        if not state.site.follows:
            self._check_not_replaced(state.site)
            raise RefusedError(f"this site leads already, in term {state.site.term}")
        if force and self._ends_for_force(state):
            state = replace(
                state, site=replace(state.site, promoting_term=None, claimed_term=None), claim=None, with_arbiter=False
            )
        seen = None if self._arbiter is None else self._arbiter.read()
        step = self._plan(state, seen, 0.0, leader_is_stopped, force)
        if isinstance(step, Begin) and not force:
            try:
                self._tables.check()
            except RefusedError as e:
                step = Refuse(e.message, e.hint or "")
        return Forecast(step, state)

    def run(
        self, *, leader_is_stopped: bool, force: bool = False, on_step: Callable[[str], None] = lambda words: None
    ) -> Promoted:
        """`force`: the caller accepts the loss of what this site lacks (docs/adr/0076). Raises RefusedError if this
        site cannot be promoted, was replaced as leader, or if another site was faster."""
        try:
            return self._run(leader_is_stopped=leader_is_stopped, force=force, on_step=on_step)
        except StrandlineError as e:
            with suppress(StrandlineError):  # the ledger itself may be what failed
                promotion_failures.record(self._ledger, e.message)
            raise

    def _run(self, *, leader_is_stopped: bool, force: bool, on_step: Callable[[str], None]) -> Promoted:
        watched = _RecordWatch(self._clock)
        begun = self._read_state()
        if force and self._ends_for_force(begun):
            promotion_claims.end(
                self._ledger, self._witness, "a person promotes this site by force instead", of=begun.claim
            )
        promotions.resume(self._ledger, self._witness)
        claim: str | None = None  # of the promotion that this process carries out
        while True:
            check_not_called_off()
            state = self._read_state()
            if not state.site.follows:
                self._check_not_replaced(state.site)
                return Promoted(state.site.term, led=None)
            _check_not_ended(claim, state)
            claim = state.claim
            seen = None if self._arbiter is None else self._arbiter.read()
            step = self._plan(state, seen, watched.seconds_unchanged(seen), leader_is_stopped, force)
            match step:
                case Begin(replaces):
                    if not force:
                        self._tables.check()
                    claim = promotion_claims.begin(
                        self._ledger, replaces, by_force=force, with_arbiter=self._arbiter is not None, instead_of=claim
                    )
                case Wait(seconds):
                    self._wait(watched, seconds, on_step, claim)
                case Put(record):
                    on_step(f"taking term {record.term}" if not record.leads else f"leading in term {record.term}")
                    if record.leads:
                        self._publish_staged()
                    self._put(record, seen)
                case ClaimTerm(term):
                    promotion_claims.claim(self._ledger, term, of=claim)
                case Lead(term):
                    on_step(f"becoming the leader of term {term}")
                    return Promoted(term, _STAGED_MEANWHILE.call(partial(self._lead, term, claim), WatermarkMoved))
                case End(message, hint):
                    promotion_claims.end(self._ledger, self._witness, message, of=claim)
                    raise RefusedError(message, hint=hint)
                case Refuse(message, hint, keeps):
                    if state.site.promoting_term is not None and state.site.claimed_term is None and not keeps:
                        promotion_claims.end(self._ledger, self._witness, message, of=claim)
                    raise RefusedError(f"this site cannot be promoted: {message}", hint=hint)

    def _read_state(self) -> PromotionState:
        with self._ledger.read_consistent() as connection:
            return promotions.read(connection)

    def _ends_for_force(self, state: PromotionState) -> bool:
        """Whether a promotion by force ends the one that has begun: it is not by force and has no claim yet, or its
        arbiter is gone."""
        if state.site.promoting_term is None:
            return False
        is_without_its_arbiter = state.with_arbiter and self._arbiter is None
        return is_without_its_arbiter or (state.site.claimed_term is None and not state.by_force)

    def _check_not_replaced(self, site: Site) -> None:
        """Raises RefusedError at a leader that another site has replaced or is about to replace: it accepts no rows,
        and cannot be promoted, not even by force, before it has followed that site."""
        if (reason := describe_successor(site)) is not None:
            raise RefusedError(
                f"this site cannot be promoted: {reason}",
                hint=f"`strandline rejoin {site.superseded_by or 'LEADER'}` makes this site follow it. "
                "docs/limits.md says what is left if that site is lost.",
            )
        seen = None if self._arbiter is None else self._arbiter.read()
        if seen is None or seen.record.term <= site.term:
            return
        by = seen.record
        raise RefusedError(
            f"this site cannot be promoted: it led in term {site.term}; site {by.name} "
            f"{'leads in' if by.leads else 'has claimed'} term {by.term}",
            hint=f"`strandline rejoin {by.address or 'LEADER'}` makes this site follow it."
            if by.leads
            else "`strandline promote` at that site, or at another member, finishes the take-over. docs/limits.md says "
            "what is left if there is none.",
        )

    def _plan(
        self,
        state: PromotionState,
        seen: VersionedRecord | None,
        unchanged_seconds: float,
        leader_is_stopped: bool,
        force: bool,
    ) -> PromoteStep:
        site, settings = state.site, self._settings
        candidate = Candidate(
            site.own_number, site_name(self._config), settings.address, site.term, site.promoting_term,
            site.claimed_term, state.terms, state.behind, site.instance, state.claim,
            force if site.promoting_term is None else state.by_force, state.highest_known_term, state.with_arbiter,
        )  # fmt: skip
        if self._arbiter is None:
            return next_step_alone(candidate, leader_is_stopped=leader_is_stopped)
        return next_step(candidate, None if seen is None else seen.record, unchanged_seconds, settings.clock_drift_max)

    def _wait(self, watched: _RecordWatch, seconds: float, on_step: Callable[[str], None], claim: str | None) -> None:
        """Waits for the lease to run out. Raises RefusedError if the leader still renews it after some leases."""
        assert watched.seen is not None
        record = watched.seen.record
        lease = record.lease_seconds * (1 + self._settings.clock_drift_max)
        if self._clock() - watched.began > lease * _LEASES_WAITED_MAX:
            why = f"site {record.name} renews its lease: it is alive, and leads in term {record.term}"
            promotion_claims.end(self._ledger, self._witness, why, of=claim)
            raise RefusedError(why, hint="Stop it first, or wait until it no longer reaches the arbiter.")
        on_step(f"waiting until the lease of site {record.name} has run out")
        self._sleep(min(seconds, lease / _POLLS_PER_LEASE))

    def _put(self, record: LeaderRecord, seen: VersionedRecord | None) -> None:
        """Puts the record. If that was refused, the next step is planned on the record that is there then."""
        assert self._arbiter is not None and seen is not None
        outcome = self._arbiter.put(record, over=seen)
        if isinstance(outcome, PutUnknown):
            raise StorageError(
                f"it is unknown whether the arbiter has stored the change: {outcome.error.message}",
                hint="Run `strandline promote` again: it continues from the change if that landed.",
            ) from outcome.error
        if isinstance(outcome, PutLanded):
            failpoints.hit("promote.after_put")

    # --- becoming leader ---

    def _publish_staged(self) -> set[BlockId]:
        """Publishes staged blocks. Returns those that nobody can publish, because branch and rows are gone. Raises
        FailedError if a table cannot be read."""
        from strandline.ingest.settle import publish_staged

        work = self._parts.work
        lost: set[BlockId] = set()
        for dataset, staged in self._read_state().staged:
            try:
                publish_staged(work, dataset, staged)
            except (BlockHeld, BlockLost) as e:
                is_settled = isinstance(e, BlockLost) and not isinstance(
                    blocks.find_block(self._ledger, staged.head), Reserved
                )
                if is_settled:
                    continue  # another process was faster; the transaction checks again
                if self._is_in_table(work, dataset, staged):
                    raise FailedError(
                        f"{dataset.name}: rows of block {staged.head.rows} are in the table, and nobody can tell "
                        "whether it was published",
                        hint=e.hint,
                    ) from e
                lost.add(staged.head.id)
        failpoints.hit("promote.after_publish")
        return lost

    @staticmethod
    def _is_in_table(work: IngestContext, dataset: Dataset, staged: Staged) -> bool:
        view = work.tables.view(dataset.name)
        return work.tables.count(dataset.name, staged.head.rows, view.main) > 0

    def _prepare_cuts(self, check_own: Callable[[Connection], None]) -> list[PreparedCut]:
        from strandline.replicate.take_over.carry_out_cut import prepare_cut

        found, work = self._read_state().cuts, self._parts.work
        prepared = [prepare_cut(work, dataset, cut.block, cut.at, check_own=check_own) for dataset, cut in found]
        failpoints.hit("promote.after_cuts")
        return prepared

    def _fence_purges(self, check_own: Callable[[Connection], None]) -> dict[DatasetId, int]:
        """Raises the epoch of tables whose open purges this promotion gives up, so that a paused process deletes
        nothing later. Returns the epochs."""
        from strandline.replicate.take_over.carry_out_cut import raise_epoch

        return {d.id: raise_epoch(self._parts.work, d, check_own) for d in self._read_state().purged}

    def _lead(self, term: int, claim: str | None) -> Led:
        check_own = partial(promotion_claims.check_claimed, term=term, of=claim)
        lost = self._publish_staged()
        prepared, fenced = self._prepare_cuts(check_own), self._fence_purges(check_own)
        return promotions.lead(self._ledger, self._witness, term, prepared=prepared, lost=lost, fenced=fenced)
