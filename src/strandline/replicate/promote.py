"""Promotes this site: from a follower to the leader. `promote_plan` says what comes next, and this does it.

| durable step | if the process dies after it |
|---|---|
| the term to be replaced stored | the next `promote` goes on with it, or ends if somebody else leads by now |
| term taken in the arbiter | the record names this site: the next `promote` goes on; another member may be faster |
| claim stored | the site records and stages nothing; the next `promote` goes on, or ends |
| staged blocks published | as any follower does |
| `leads` in the record | only this site can go on |
| rows of recorded cuts set aside and removed | the next `promote` repeats it |
| epoch raised on tables whose purges are given up | the next `promote` repeats it |
| witness replaced | the ledger is not behind: only `promote` goes on |
| the transaction | it leads |

A zombie of this promotion puts nothing: its record is an old one. Its transaction finds another term, or no claim.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.core import failpoints
from strandline.core.arbiter import Record
from strandline.core.calling_off import check_going
from strandline.core.clock import elapsed_seconds
from strandline.core.errors import BlockHeld, BlockLost, FailedError, MarkMoved, RefusedError, StorageError
from strandline.core.settings import LakeConfig
from strandline.core.types import BlockId, Dataset, DatasetId, Reserved, Staged
from strandline.deliver.sink_definitions import SinksTakenOver
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import promotions
from strandline.ledger.replicate.cuts import PreparedCut
from strandline.ledger.replicate.promotions import Led, Standing
from strandline.ledger.witness import Witness
from strandline.replicate.arbiter.arbiter import Arbiter, Landed, Seen, Unknown
from strandline.replicate.leader_sinks import take_over_sinks
from strandline.replicate.promote_plan import (
    Begin,
    Candidate,
    Claim,
    End,
    Lead,
    Put,
    Refuse,
    Step,
    Wait,
    next_step,
    next_step_alone,
)
from strandline.replicate.site_name import site_name

if TYPE_CHECKING:
    from strandline.ingest.context import IngestContext

_ATTEMPTS_MAX = 5  # of the transaction, when something was staged meanwhile
_POLLS_PER_LEASE = 20
_PATIENCE = 3  # leases, for a leader that goes on renewing its own


@dataclass(frozen=True, slots=True)
class Promoted:
    term: int
    already: bool  # it led before this command
    led: Led | None
    quarantined: tuple[tuple[str, int], ...] = ()  # by sink: refused rows that wait at the old leader, as it said last


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a promotion would do now."""

    step: Step
    standing: Standing


@dataclass
class _Watched:
    """For how long the record has stood unchanged, as this process saw it."""

    clock: Callable[[], float]
    seen: Seen | None = None
    since: float = 0.0
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def look(self, now: Seen | None) -> float:
        if now != self.seen:
            self.seen, self.since = now, self.clock()
        return self.clock() - self.since


class Promotion:
    def __init__(
        self,
        config: LakeConfig,
        ledger: Ledger,
        witness: Witness,
        started: Callable[[], IngestContext],
        arbiter: Arbiter | None,
        *,
        clock: Callable[[], float] = elapsed_seconds,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._settings = config.settings.replication
        self._ledger = ledger
        self._witness = witness
        self._started = started
        self._arbiter = arbiter
        self._clock = clock
        self._sleep = sleep

    def forecast(self, *, leader_is_stopped: bool) -> Forecast:
        """Changes nothing. Raises RefusedError at a site that leads, StorageError if the arbiter does not answer."""
        standing = self._standing()
        if not standing.site.follows:
            raise RefusedError(f"this site leads already, in term {standing.site.term}")
        seen = None if self._arbiter is None else self._arbiter.read()
        return Forecast(self._plan(standing, seen, 0.0, leader_is_stopped), standing)

    def run(self, *, leader_is_stopped: bool, on_step: Callable[[str], None] = lambda words: None) -> Promoted:
        """Raises RefusedError if this site cannot be promoted, or another one was faster."""
        watched = _Watched(self._clock)
        promotions.resume(self._ledger, self._witness)
        while True:
            check_going()
            standing = self._standing()
            if not standing.site.follows:
                return Promoted(standing.site.term, already=True, led=None)
            seen = None if self._arbiter is None else self._arbiter.read()
            step = self._plan(standing, seen, watched.look(seen), leader_is_stopped)
            match step:
                case Begin(replaces):
                    promotions.begin(self._ledger, replaces)
                case Wait(seconds):
                    self._wait(watched, seconds, on_step)
                case Put(record):
                    on_step(f"taking term {record.term}" if not record.leads else f"leading in term {record.term}")
                    if record.leads:
                        self._publish_staged()
                    self._put(record, seen)
                case Claim(term):
                    promotions.claim(self._ledger, term)
                case Lead(term):
                    on_step(f"becoming the leader of term {term}")
                    led, sinks = self._lead(term)
                    return Promoted(term, already=False, led=led, quarantined=sinks.quarantined)
                case End(message, hint):
                    promotions.end(self._ledger, message)
                    raise RefusedError(message, hint=hint)
                case Refuse(message, hint):
                    if standing.site.promoting_term is not None and standing.site.claimed_term is None:
                        promotions.end(self._ledger, message)
                    raise RefusedError(f"this site cannot be promoted: {message}", hint=hint)

    def _standing(self) -> Standing:
        with self._ledger.read_at_once() as connection:
            return promotions.read(connection)

    def _plan(self, standing: Standing, seen: Seen | None, stood_seconds: float, leader_is_stopped: bool) -> Step:
        site, settings = standing.site, self._settings
        candidate = Candidate(
            site.own_number, site_name(self._config), settings.address, site.term, site.promoting_term,
            site.claimed_term, standing.terms, standing.behind, site.instance, standing.claim,
        )  # fmt: skip
        if self._arbiter is None:
            return next_step_alone(candidate, leader_is_stopped=leader_is_stopped)
        return next_step(candidate, None if seen is None else seen.record, stood_seconds, settings.clock_drift_max)

    def _wait(self, watched: _Watched, seconds: float, on_step: Callable[[str], None]) -> None:
        """A leader that renews its lease is alive. It is given some time to stop."""
        assert watched.seen is not None
        record = watched.seen.record
        lease = record.lease_seconds * (1 + self._settings.clock_drift_max)
        if self._clock() - watched.began > lease * _PATIENCE:
            why = f"site {record.name} renews its lease: it is alive, and leads in term {record.term}"
            promotions.end(self._ledger, why)
            raise RefusedError(why, hint="Stop it first, or wait until it no longer reaches the arbiter.")
        on_step(f"waiting until the lease of site {record.name} has run out")
        self._sleep(min(seconds, lease / _POLLS_PER_LEASE))

    def _put(self, record: Record, seen: Seen | None) -> None:
        """Refused: the next look at the record decides."""
        assert self._arbiter is not None and seen is not None
        outcome = self._arbiter.put(record, over=seen)
        if isinstance(outcome, Unknown):
            raise StorageError(
                f"nobody knows whether the arbiter has taken the change: {outcome.error.message}",
                hint="Run `strandline promote` again: if it landed, it goes on from there.",
            ) from outcome.error
        if isinstance(outcome, Landed):
            failpoints.hit("promote.after_put")

    # --- becoming leader ---

    def _publish_staged(self) -> set[BlockId]:
        """Publishes what is staged. Returns blocks that nobody can publish: their branch is gone, and their rows are
        nowhere. Raises FailedError if a table cannot be read."""
        from strandline.ingest.settle import publish_staged

        work = self._started()
        lost: set[BlockId] = set()
        for dataset, staged in self._standing().staged:
            try:
                publish_staged(work, dataset, staged)
            except (BlockHeld, BlockLost) as e:
                is_settled = isinstance(e, BlockLost) and not isinstance(
                    blocks.find_block(self._ledger, staged.head), Reserved
                )
                if is_settled:
                    continue  # another process was faster; the transaction looks again
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

    def _prepare_cuts(self) -> list[PreparedCut]:
        from strandline.replicate.carry_out_cut import prepare_cut

        found = self._standing().cuts
        prepared = [prepare_cut(self._started(), dataset, cut.block, cut.at) for dataset, cut in found]
        failpoints.hit("promote.after_cuts")
        return prepared

    def _fence_purges(self) -> dict[DatasetId, int]:
        """Raises the epoch of tables that have purges which are given up: a process that carries one out, and was taken
        for dead, deletes nothing later. Returns the epochs."""
        from strandline.replicate.carry_out_cut import raise_epoch

        return {d.id: raise_epoch(self._started(), d) for d in self._standing().purged}

    def _lead(self, term: int) -> tuple[Led, SinksTakenOver]:
        taken: list[SinksTakenOver] = []

        def take_over(connection: Connection) -> tuple[str, ...]:
            taken.append(take_over_sinks(connection))
            return taken[-1].left

        for attempt in range(_ATTEMPTS_MAX):
            lost = self._publish_staged()
            prepared, fenced = self._prepare_cuts(), self._fence_purges()
            try:
                led = promotions.lead(
                    self._ledger, self._witness, term, prepared=prepared, lost=lost, fenced=fenced,
                    take_over_sinks=take_over,
                )  # fmt: skip
                return led, taken[-1]
            except MarkMoved:
                if attempt == _ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError("unreachable")
