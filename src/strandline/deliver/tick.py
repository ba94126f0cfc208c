"""A tick: one pass over all sinks. A lake in which all sinks are idle costs one query to the ledger."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic

from strandline.core import failpoints
from strandline.core.activity import ActivityKind, Stopwatch
from strandline.core.actor import bind_context
from strandline.core.calling_off import called_off_by
from strandline.core.delivery_types import SinkId, SinkRecord, SinkState
from strandline.core.errors import (
    CalledOff,
    LeaseLost,
    NoSuchSink,
    SinkStopped,
    StorageError,
    StrandlineError,
    WatermarkUnreadable,
    unexpected_message,
)
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset, DatasetId, Seq
from strandline.deliver.context import DeliverContext
from strandline.deliver.idle_checks import IdleChecks
from strandline.deliver.plan.chunking import batch_is_ready, promise_limit, retry_wait_seconds
from strandline.deliver.send.core_limits import TroubledSinks
from strandline.deliver.sink_options import parse_common
from strandline.deliver.sink_session import DeliverProgress, SinkRun, no_progress
from strandline.jobs.heartbeat import holding_lease
from strandline.ledger import audit
from strandline.ledger.deliver import intents, sinks
from strandline.ledger.deliver.sinks import SinkWork
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.replicate import followers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkReport:
    name: str
    # `idle`, `delivered`, `waiting` (for a retry), `stopped`, `paused`, or `busy` (another deliverer has the lease)
    did: str
    rows: int = 0
    withheld: int = 0
    chunks: int = 0
    reason: str | None = None
    hint: str | None = None
    quarantined: int = 0  # rows that the sink refused and that went to quarantine


@dataclass(frozen=True, slots=True)
class TickReport:
    sinks: tuple[SinkReport, ...]
    serving: tuple[str, ...] | None = None  # all sinks, if `sinks` has only those that have just ended


class Deliverer:
    """Runs ticks, by hand or in the daemon. Many may run at once, in many processes: each sink has a lease."""

    def __init__(
        self,
        context: DeliverContext,
        *,
        ready: Callable[[], None] = lambda: None,
        progress: DeliverProgress = no_progress,
        stopping: threading.Event | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.context = context
        self.ready = ready  # called before a tick reads its first row: a restored ledger is resynced first
        self.progress = progress
        self.stopping = stopping or threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[SinkId, Future[SinkReport]] = {}
        self._ended: list[SinkReport] = []  # reports of sinks that have ended and nobody has got yet
        self._suspects: set[SinkId] = set()
        self._served: tuple[str, ...] = ()
        self._troubled = TroubledSinks()
        self._idle_checks = IdleChecks(context.settings.idle_check_seconds, clock)

    def tick(self, only: str | None = None) -> TickReport:
        """Delivers until every sink has all sealed rows, or waits. The sink `only` is retried at once."""
        now = utc_now()
        known, work = self._load_work()
        if waiting := [s.id for s in known if s.name == only and s.retry_at is not None]:
            self.context.ledger.change(sinks.retry_now, waiting[0])
            known, work = self._load_work()
        chosen = [s for s in known if only in (None, s.name)]
        if only is not None and not chosen:
            raise NoSuchSink(f"there is no sink {only}", hint=f"Sinks: {', '.join(s.name for s in known) or 'none'}.")
        todo = [work[s.id] for s in chosen if s.id in work and self._is_due(work[s.id], now)]
        done: dict[str, SinkReport] = {}
        if todo:
            self.ready()
            todo.sort(key=_is_suspect)  # a sink that hangs must not take the place of one that works
            with ThreadPoolExecutor(self.context.settings.sinks_at_once_max, "strandline-sink") as pool:
                done = {r.name: r for r in pool.map(bind_context(self._deliver), todo)}
        return TickReport(tuple(done.get(s.name) or _at_rest(s, now) for s in chosen))

    def _load_work(self) -> tuple[list[SinkRecord], dict[SinkId, SinkWork]]:
        with self.context.ledger.read() as connection:
            waits = followers.sealed_by_all(connection) if self.context.settings.wait_for == "all" else {}
            return sinks.list_sinks(connection), {w.sink.id: _bounded(w, waits) for w in sinks.due(connection)}

    def keep_delivering(self) -> TickReport:
        """One poll of the daemon: start every sink that has work and is not running, and report those that ended since
        the last poll. It waits for no sink."""
        ended = [id for id, running in self._running.items() if running.done()]
        self._ended += (self._running.pop(id).result() for id in ended)
        now = utc_now()
        known, work = self._load_work()
        self._served = tuple(s.name for s in known)
        todo = [w for w in work.values() if w.sink.id not in self._running and self._is_due(w, now)]
        todo = self._without_surplus_suspects(todo)
        if todo:
            self.ready()
            for w in todo:
                self._start(w, partial(self._deliver, plans_max=1))
                if _is_suspect(w):
                    self._suspects.add(w.sink.id)
        self._check_an_idle_one(list(work.values()))
        return self._report()

    def _start(self, work: SinkWork, deliver: Callable[[SinkWork], SinkReport]) -> None:
        self._pool = self._pool or ThreadPoolExecutor(self.context.settings.sinks_at_once_max, "strandline-sink")
        self._running[work.sink.id] = self._pool.submit(deliver, work)
        self._idle_checks.note(work.sink.id)

    def _report(self) -> TickReport:
        reports, self._ended = self._ended, []
        return TickReport(tuple(reports), self._served)

    def _check_an_idle_one(self, active: Sequence[SinkWork]) -> None:
        """Check one idle sink for a loss. The check never takes the last place in the pool: its server may be silent,
        and sinks that have rows to get would wait for it."""
        if len(self._running) >= max(1, self.context.settings.sinks_at_once_max - 1):
            return
        idle = {w.sink.id: w for w in active if w.sink.id not in self._running and not _is_suspect(w)}
        record = self._idle_checks.next_due([w.sink for w in idle.values()])
        if record is not None:
            self._start(idle[record.id], partial(self._deliver, checks_only=True))

    def _without_surplus_suspects(self, todo: list[SinkWork]) -> list[SinkWork]:
        """`todo` without the sinks that failed the last time and find no place. They never take the last place in the
        pool: one of them may hang again, for as long as a response may take, and the other sinks would wait for it."""
        self._suspects &= set(self._running)
        places = max(1, self.context.settings.sinks_at_once_max - 1) - len(self._suspects)
        suspects = sorted((w for w in todo if _is_suspect(w)), key=lambda w: w.sink.retry_at or w.sink.created_at)
        return [w for w in todo if not _is_suspect(w)] + suspects[: max(0, places)]

    def close(self) -> TickReport:
        """Wait for the sinks that are running. If `stopping` is set, their present Spark jobs are cancelled."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._ended += (running.result() for running in self._running.values())
        self._running.clear()
        return self._report()

    def _is_due(self, work: SinkWork, now: datetime) -> bool:
        record = work.sink
        waits = record.retry_at is not None and now < record.retry_at
        if work.open_intents and not waits:
            return True
        if waits and not work.open_intents:
            return False
        try:
            return self._can_plan(work, now)
        except failpoints.FailpointError:
            raise
        except Exception:
            # Delivering to it meets the same error, stores it, and waits before it tries again. The others continue.
            return not waits

    def _can_plan(self, work: SinkWork, now: datetime) -> bool:
        record = work.sink
        if work.sealed is None or not (work.behind or work.sealed > (record.planned or 0)):
            return False
        ready = batch_is_ready(
            parse_common(record.options),
            rows=work.unplanned_rows,
            oldest=work.oldest_unplanned,
            now=now,
            lanes_behind=work.behind,
        )
        if not ready or not work.open_intents:
            return ready
        dataset = dataset_of(self.context.ledger, record)
        return dataset is None or bool(dataset.deliver_by)  # None: `_deliver` stops the sink

    def _deliver(self, work: SinkWork, *, plans_max: int | None = None, checks_only: bool = False) -> SinkReport:
        watch = Stopwatch(ActivityKind.TICK, work.sink.name)
        report = self._deliver_to(work, plans_max=plans_max, checks_only=checks_only)
        watch.report(report.did, rows=report.rows)
        return report

    def _deliver_to(self, work: SinkWork, *, plans_max: int | None, checks_only: bool) -> SinkReport:
        """Deliver to one sink; a failure is reported and leaves the other sinks alone. With `checks_only`, the
        destination is only asked whether it holds what it acknowledged."""
        if self.stopping.is_set():
            return SinkReport(work.sink.name, "idle")
        record, ledger, seconds = work.sink, self.context.ledger, self.context.settings.lease_seconds
        try:
            dataset = dataset_of(ledger, record)
            if dataset is None:
                raise SinkStopped(
                    f"{record.name}: its dataset was dropped, or its table was created again",
                    hint=f"`strandline sink remove {record.name}`, and add one for the dataset that is there now.",
                )
            lease = sinks.leases.take(ledger, record.id, seconds=seconds)
            if lease is None:
                return SinkReport(record.name, "busy")
            failpoints.hit("deliver.after_lease")
            run = SinkRun(self.context, record, dataset, lease, self.progress, self.stopping, plans_max)
            run.troubled = self._troubled
            with (
                holding_lease(ledger, sinks.leases, lease, seconds=seconds),
                closing(run),
                called_off_by(self.stopping),
            ):
                return self._work_and_record(run, work.sealed, checks_only=checks_only)
        except SinkStopped as e:
            with suppress(StrandlineError), ledger.write() as connection:  # on failure, the next poll stops it again
                sinks.stop(connection, record.id, e.message)
            return SinkReport(record.name, "stopped", reason=e.message, hint=e.hint)
        except CalledOff:
            return SinkReport(record.name, "idle")
        except Exception as e:  # trouble with the ledger itself, so it cannot be stored there
            reason, hint = _explained(record.name, e)
            return SinkReport(record.name, "waiting", reason=reason, hint=hint)

    def _work_and_record(self, run: SinkRun, sealed: Seq | None, *, checks_only: bool) -> SinkReport:
        """The outcome is stored under the lease: a deliverer that was superseded must not change the sink's state."""
        name = run.record.name
        try:
            return _check(run) if checks_only else self._work(run, sealed)
        except LeaseLost as e:
            return SinkReport(name, "busy", reason=e.message)
        except (SinkStopped, WatermarkUnreadable) as e:
            with self.context.ledger.write() as connection:
                if not sinks.leases.holds(connection, run.lease):
                    return _superseded(SinkReport(name, "busy"))
                sinks.stop(connection, run.record.id, e.message)
                audit.record(connection, Event.SINK_STOPPED, sink=name, reason=e.message)
            return SinkReport(name, "stopped", reason=e.message, hint=e.hint)
        except Exception as e:  # whatever it is, perhaps in a sink of another package: the other sinks must continue
            reason, hint = _explained(name, e)
            if isinstance(e, StrandlineError) and self.stopping.is_set():
                return SinkReport(name, "idle")  # stopping cut the request short: this is no failure of the sink
            if isinstance(e, StrandlineError) and checks_only:  # nobody waits for rows, so no early retry is needed
                log.warning("sink %s is idle, and could not be checked: %s", name, reason)
                return SinkReport(name, "idle")
            return self._waits(run, SinkReport(name, "waiting", hint=hint), reason, None)

    def _work(self, run: SinkRun, sealed: Seq | None) -> SinkReport:
        from strandline.deliver.plan.planner import store_next
        from strandline.deliver.send.send_intents import Finished, finish

        ledger, now = self.context.ledger, utc_now()
        run.fence()
        with ledger.read() as connection:
            current = sinks.get(connection, run.record.name)
            left = intents.open_of(connection, current)
        run.record = current
        run.claim()
        done = Finished()
        waits = current.retry_at is not None and now < current.retry_at
        if left and not waits:
            done.add(finish(run, left, fresh=False))
        plans = 0
        while not (self.stopping.is_set() or done.gave_up) and (run.plans_max is None or plans < run.plans_max):
            plans += 1
            try:
                stored = store_next(run) if self._may_plan(run) else None
            except CalledOff:
                break
            if stored is None:
                break
            done.add(finish(run, stored, fresh=True))
            if done.troubles and not run.dataset.deliver_by:
                break
            # A tick ends, however fast rows come: the other sinks and the caller wait for it. A lane that had to keep
            # to an older cut is behind until the next plan takes it in.
            if (run.record.planned or 0) >= (sealed or 0) and not ((found := self._work_of(run)) and found.behind):
                break
        did = "delivered" if done.intents else "idle"
        report = SinkReport(run.record.name, did, done.rows, done.withheld, done.chunks, quarantined=done.quarantined)
        if done.troubles:
            return self._waits(run, report, _first_of(done.troubles), done.wait_seconds)
        if not (left and waits) and not self.stopping.is_set():  # what was cancelled neither succeeded nor failed
            with ledger.write() as connection:
                if sinks.leases.holds(connection, run.lease):
                    sinks.clear_failures(connection, run.record.id)
        return report

    def _work_of(self, run: SinkRun) -> SinkWork | None:
        return next((w for w in self.context.ledger.query(sinks.due) if w.sink.id == run.record.id), None)

    def _may_plan(self, run: SinkRun) -> bool:
        found = self._work_of(run)
        if found is None:
            return False
        run.record = found.sink
        return self._can_plan(found, utc_now())

    def _waits(self, run: SinkRun, report: SinkReport, reason: str, asked: float | None) -> SinkReport:
        """Store the failure and the time of the next retry. The kind of trouble does not matter: a peer that answers
        nonsense says something else each time. Only rows that land show that retrying helps, and only if they prove
        something about the rows that did not land."""
        settings, record, now = self.context.settings, run.record, utc_now()
        helped = run.landed_any and not run.dataset.deliver_by  # one partition proves nothing about another
        since = now if helped or record.failing_since is None else record.failing_since
        seconds = retry_wait_seconds(
            record.failures,
            asked,
            settings.retry_seconds_max,
            random.random(),
            failing_seconds=(now - since).total_seconds(),
            long_seconds_max=settings.retry_long_seconds_max,
        )
        with self.context.ledger.write() as connection:
            if not sinks.leases.holds(connection, run.lease):
                return _superseded(report)
            sinks.failed(connection, run.record.id, reason, now + timedelta(seconds=seconds), since)
        return replace(report, did="waiting", reason=reason)


def dataset_of(ledger: Ledger, record: SinkRecord) -> Dataset | None:
    """None if the dataset was dropped."""
    return next((d for d in ledger.query(datasets.list_datasets) if d.id == record.dataset), None)


def _check(run: SinkRun) -> SinkReport:
    run.fence()
    run.claim()
    return SinkReport(run.record.name, "idle")


def _is_suspect(work: SinkWork) -> bool:
    return work.sink.failures > 0


def _bounded(work: SinkWork, waits: Mapping[DatasetId, Seq | None]) -> SinkWork:
    """As far as a plan may go: sinks that wait for followers get nothing that one of them lacks."""
    if work.sealed is None or work.sink.dataset not in waits:
        return work
    return replace(work, sealed=promise_limit(work.sealed, work.sink.planned, waits[work.sink.dataset]))


def _superseded(report: SinkReport) -> SinkReport:
    return replace(report, did="busy", reason=f"{report.name}: another deliverer has taken over")


def _first_of(troubles: list[str]) -> str:
    """The first of the distinct messages: the same trouble with a hundred chunks is shown once."""
    distinct = list(dict.fromkeys(troubles))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} (and {len(distinct) - 1} more)"


def _at_rest(record: SinkRecord, now: datetime) -> SinkReport:
    if record.state is SinkState.PAUSED:
        return SinkReport(record.name, "paused")
    if record.state is SinkState.STOPPED:
        return SinkReport(record.name, "stopped", reason=record.reason)
    if record.retry_at is not None and now < record.retry_at:
        return SinkReport(record.name, "waiting", reason=record.reason)
    return SinkReport(record.name, "idle")


def _explained(name: str, error: Exception) -> tuple[str, str | None]:
    """Message and hint. A StorageError without a hint does not know that another tick follows."""
    if isinstance(error, failpoints.FailpointError):
        raise error
    if not isinstance(error, StrandlineError):
        log.error("sink %s failed with an unexpected error", name, exc_info=error)
        return unexpected_message(error), None
    if error.hint is None and isinstance(error, StorageError):
        return error.message, "Nothing is lost: the next tick tries again."
    return error.message, error.hint
