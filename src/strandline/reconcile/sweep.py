"""A run: gate → list storage → read references → compare → guard → missing files → orphan files → record.

A run acts only on planned findings, in the order of paths, and checks each candidate again just before. A candidate
that changed is skipped and does not count towards the cap, so the first candidates cannot block the rest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, groupby, islice

from strandline.core import failpoints
from strandline.core.activity import ActivityKind, Stopwatch
from strandline.core.calling_off import check_not_called_off
from strandline.core.errors import (
    CalledOff,
    CommitUnknown,
    LeaseLost,
    ReferencesTooMany,
    StorageError,
    StrandlineError,
    SweepRunning,
)
from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import AbortReason, Asked, ReconcileRun, ReconcileRunId, SweptState
from strandline.core.text.wording import plural
from strandline.jobs.store_end import NOBODY_WAITS, store_end
from strandline.ledger import audit
from strandline.ledger.engine import Connection
from strandline.ledger.maintain import runs
from strandline.ledger.reconcile import quarantined_files, reconcile_runs
from strandline.reconcile.act import DriftRemover, is_unread
from strandline.reconcile.compare import guard
from strandline.reconcile.compare.compared import Survey
from strandline.reconcile.context import SweepContext
from strandline.reconcile.model import FileContent, Finding, Phase, Protection, Stat
from strandline.reconcile.paths import Roots, key
from strandline.reconcile.quarantine_lookup import QuarantinedAt, QuarantineLookup, find_quarantined
from strandline.reconcile.references.collect import LakeReferences
from strandline.reconcile.run_counters import RunCounters
from strandline.reconcile.run_listener import RunListener
from strandline.reconcile.run_watch import CANCELLED, Aborted, RunWatch, under_lease
from strandline.reconcile.settle import close_dead_run, settle_dead_runs
from strandline.reconcile.suspects import Suspects, find_suspects

log = logging.getLogger(__name__)


def sweep(
    context: SweepContext,
    asked: Asked,
    *,
    is_due: Callable[[], bool] = lambda: True,
    cancelled: threading.Event | None = None,
    listener: RunListener | None = None,
) -> ReconcileRun:
    """Does one run, and returns its record. An abort is an outcome, not an error. Raises SweepRunning, also if it is
    not due any more once it has the lease."""
    listener, seconds_max = listener or RunListener(), context.settings.run_seconds_max
    with under_lease(context, run_seconds_max=seconds_max, cancelled=cancelled, listener=listener) as watch:
        if not is_due():
            raise SweepRunning(
                "another run of the reconciler did meanwhile what was due", hint="`strandline reconcile runs` shows it."
            )
        run = _begin(context, asked, watch)
        failpoints.hit("reconcile.after_start")
        listener.begun(run)
        _Sweep(context, run, asked, watch, listener).run()
    return context.ledger.query(reconcile_runs.get, run)


def _begin(context: SweepContext, asked: Asked, watch: RunWatch) -> ReconcileRunId:
    """Puts a run on record, and ends the one before it if that died. Raises LeaseLost."""
    try:
        with context.ledger.write() as connection:
            watch.hold(connection)
            close_dead_run(connection)
            return reconcile_runs.start(connection, asked, context.storage.kind, context.folder)
    except Aborted as e:
        raise LeaseLost("another run of the reconciler has taken over before this one began", hint="Try again.") from e


class _Sweep:
    def __init__(
        self, context: SweepContext, run: ReconcileRunId, asked: Asked, watch: RunWatch, listener: RunListener
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._run = run
        self._activity = Stopwatch(ActivityKind.RUN, "reconcile")
        self._asked = asked
        self._watch = watch
        self._listener = listener
        self._counters = RunCounters(context.settings)
        self._actor = DriftRemover(context, run, asked, watch, self._counters)

    def run(self) -> None:
        try:
            self._settle()
            self._work()
        except Aborted as e:
            self._end(e.reason, e.why)
        except ReferencesTooMany as e:
            self._end(AbortReason.REFERENCES_TOO_MANY, e.message)
        except CommitUnknown as e:
            self._end(AbortReason.COMMIT_FAILED, e.message)
        except CalledOff:
            self._end(AbortReason.CANCELLED, CANCELLED)
        except StrandlineError as e:
            self._end(AbortReason.UNKNOWN, e.message)
        except BaseException as e:
            ended = (AbortReason.UNKNOWN, f"it ended unexpectedly: {type(e).__name__}")
            if isinstance(e, KeyboardInterrupt):
                ended = (AbortReason.CANCELLED, "it was interrupted")
            with suppress(StrandlineError):  # it is logged, and `e` says more
                self._end(*ended, waits=isinstance(e, Exception))
            raise
        else:
            failpoints.hit("reconcile.before_end")
            self._end()

    def _settle(self) -> None:
        """Also for a run that is called off: what became of the run before it is recorded."""
        self._watch.phase(Phase.SETTLE)
        with suppress(CalledOff):
            self._context.preparation.for_run(self._asked)
        for what in settle_dead_runs(self._context, self._watch, run=self._run):
            self._counters.fail(what)
        check_not_called_off()

    def _work(self) -> None:
        ledger_context = self._context.loader.ledger_context(self._asked)
        self._counters.begin(ledger_context)
        survey = self._context.surveyor.survey(ledger_context, self._watch)
        self._counters.survey(survey, ledger_context.contents_before)
        self._counters.note(vanished=self._vanished(survey))
        quarantined = self._in_quarantine(survey)
        suspects = self._find_suspects(survey, quarantined)
        self._report(survey, quarantined, suspects)
        is_empty = not (
            ledger_context.seals or survey.references.tables or survey.references.unread or survey.drift.listed
        )
        if not self._asked.act and not is_empty:  # a new lake has nothing that a guard could refuse
            refusals = (self._gate_refusal(survey), self._share_refusal(survey, quarantined))
            self._counters.note(refusals=tuple(why for why in refusals if why is not None))
        self._context.ledger.change(self._record_progress)
        if not self._asked.act:
            return
        _check(self._gate_refusal(survey))
        planned = survey.drift.planned
        self._watch.phase(Phase.MISSING, min(planned.missing, self._counters.left))
        self._bring_back(quarantined)
        _check(self._share_refusal(survey, quarantined))
        known = self._sweep_missing(survey, quarantined, suspects)
        self._watch.phase(Phase.ORPHANS, min(planned.total - planned.missing, self._counters.left))
        self._sweep_orphans(survey, known, suspects)

    def _record_progress(self, connection: Connection) -> None:
        """Raises Aborted if somebody has called the run off, perhaps through another process a moment ago."""
        self._watch.fence(connection)
        reconcile_runs.progress(connection, self._run, self._counters.outcome())

    def _in_quarantine(self, survey: Survey) -> QuarantineLookup:
        """Missing files that are in quarantine, or for which that could not be checked."""
        quarantined = find_quarantined(self._context, survey, self._watch.check)
        if quarantined.unchecked:
            self._counters.note(partial=True)
        for why in dict.fromkeys(quarantined.unchecked.values()):
            self._counters.fail(why)
        return quarantined

    def _find_suspects(self, survey: Survey, quarantined: QuarantineLookup) -> Suspects:
        """Orphan files that are probably the files of missing entries: the run touches neither."""
        suspects = find_suspects(self._context, survey, quarantined, self._watch)
        self._counters.note(suspects=len(suspects.files))
        for path, entry in suspects.files.items():
            self._counters.fail(f"{path} is probably the file that the entry {entry} means: the metadata is damaged")
        for why in dict.fromkeys(suspects.unreadable.values()):
            self._counters.fail(why)
        self._counters.reprotect(suspects.before, Protection.DAMAGED)
        return suspects

    def _report(self, survey: Survey, quarantined: QuarantineLookup, suspects: Suspects) -> None:
        drift = survey.drift
        missing = (replace(f, in_quarantine=True) if f.path in quarantined.files else f for f in drift.missing())
        if not self._listener.wants_findings:
            orphans = drift.first_orphans(self._settings.samples_max)
            self._counters.sample(map(suspects.marked, chain(missing, orphans)))
            return

        def reported() -> Iterator[Finding]:
            for finding in map(suspects.marked, chain(missing, drift.orphans())):
                self._listener.found(finding)
                yield finding

        self._counters.sample(reported())

    def _vanished(self, survey: Survey) -> int:
        """How many tables the run before saw that the catalog does not have."""
        if survey.references.unread:
            return 0
        before = self._context.ledger.query(reconcile_runs.latest, runs_max=2)
        known = next((run.outcome.tables for run in before if run.ended_at is not None), {})
        return len(known.keys() - {head.uuid for head in survey.references.tables})

    def _gate_refusal(self, survey: Survey) -> str | None:
        references = survey.references
        return self._context.loader.gate({head.name: head.uuid for head in references.tables}, references.unread.keys())

    def _share_refusal(self, survey: Survey, quarantined: QuarantineLookup) -> str | None:
        """Files that are only in quarantine do not count: they were brought back before this check."""
        settings, planned = self._settings, self._counters.seen.planned
        for what, count, total in (
            ("entry", planned.missing - quarantined.planned, len(survey.references)),
            ("file", planned.orphans + planned.foreign + planned.superseded, survey.drift.listed),
        ):
            if guard.share_refused(
                count, total, share_max=settings.deletes_max_share, floor_files=settings.share_floor_files
            ):
                return (
                    f"{count:,} of {plural(total, what)} would be acted on, which is more than the share that "
                    f"reconcile.deletes_max_share allows ({settings.deletes_max_share:.0%})"
                )
        return None

    def _bring_back(self, quarantined: QuarantineLookup) -> None:
        """Brings back quarantined files that a table needs, before anything else."""
        waiting = iter(quarantined.files.values())
        while some := list(islice(waiting, self._settings.batch_size)):
            back: list[QuarantinedAt] = []
            try:
                for file in some:
                    self._watch.last_word()
                    try:
                        if self._context.storage.bring_back(file.kept_at, file.path):
                            back.append(file)
                    except StorageError as e:
                        self._counters.fail(e.message)
            finally:
                self._record_back(back)

    def _record_back(self, back: Sequence[QuarantinedAt]) -> None:
        if not back:
            return
        failpoints.hit("reconcile.after_brought_back")
        self._counters.did(restored=len(back))
        with self._context.ledger.write() as connection:
            recorded = [file.swept for file in back if file.swept is not None]
            quarantined_files.move(connection, recorded, SweptState.RESTORED, "a table references it")
            audit.record(
                connection,
                Event.FILES_RESTORED,
                run=self._run,
                files=len(back),
                samples=[file.path for file in back[: self._settings.samples_max]],
            )

    def _sweep_missing(self, survey: Survey, quarantined: QuarantineLookup, suspects: Suspects) -> LakeReferences:
        known = survey.references
        planned = (
            f
            for f in survey.drift.missing()
            if f.protected is None and f.path not in quarantined and not suspects.protects(f)
        )
        for table, findings in groupby(planned, key=lambda f: f.table or ""):
            for some in self._batches(findings):
                known, gone, unchecked = self._still_gone(table, some, known)
                self._counters.did(skipped_recheck=len(some) - len(gone) - unchecked)
                if gone:
                    self._actor.drop_entries(table, gone)
                self._watch.progress(self._counters.done.missing)
            if self._counters.seen.cap_hit:
                break
        return known

    def _batches(self, findings: Iterator[Finding]) -> Iterator[list[Finding]]:
        """Ends at the cap, and records that if there are more findings."""
        while some := list(islice(findings, min(self._settings.batch_size, max(self._counters.left, 1)))):
            self._watch.check()
            if self._counters.left <= 0:
                self._hit_cap()
                return
            yield some

    def _still_gone(
        self, table: str, some: Sequence[Finding], known: LakeReferences
    ) -> tuple[LakeReferences, list[Finding], int]:
        """Also returns how many could not be checked."""
        known = self._context.surveyor.references(known, self._watch)
        if table in known.unread:
            return known, [], 0
        live = known.referenced([f.path for f in some])
        stats = self._context.find_files([f.path for f in some])
        gone = [f for f, stat in zip(some, stats, strict=True) if stat is None and f.path in live]
        return known, gone, self._not_checked(stats)

    def _not_checked(self, stats: Sequence[Stat | StorageError | None]) -> int:
        """Counts candidates that could not be checked again, and reports them as far as there is room."""
        errors = [stat for stat in stats if isinstance(stat, StorageError)]
        for error in errors:
            self._counters.fail(error.message)
        self._counters.did(recheck_failed=len(errors))
        if errors:
            log.warning("run %d: could not be checked again, and stayed: %d", self._run, len(errors))
        return len(errors)

    def _sweep_orphans(self, survey: Survey, known: LakeReferences, suspects: Suspects) -> None:
        waiting = (f for f in survey.drift.orphans() if f.protected is None and f.path not in suspects.files)
        before = {head.location for head in survey.references.tables}
        for some in self._batches(waiting):
            stats = self._context.find_files([f.path for f in some])
            known = self._context.surveyor.references(known, self._watch)
            if self._asked.delete and known.unread:
                self._counters.fail("a table cannot be read: until it can, nothing is deleted without quarantine")
                return
            still = self._still_orphans(some, stats, known, before)
            self._counters.did(skipped_recheck=len(some) - len(still) - self._not_checked(stats))
            if still:
                known = self._actor.sweep_files(still, known)
            self._watch.progress(self._counters.files)

    def _still_orphans(
        self,
        some: Sequence[Finding],
        stats: Sequence[Stat | StorageError | None],
        known: LakeReferences,
        before: set[str],
    ) -> list[tuple[Finding, Stat]]:
        """Those that are exactly as listed, and that nothing references now."""
        live = known.referenced([f.path for f in some])
        spooled = self._context.loader.spooled([f.path for f in some if f.content is FileContent.SPOOL])
        at_work = self._context.ledger.query(runs.datasets_with_runs)
        # A table may have been registered since, over a folder that nobody owned: its files are its own.
        new_tables = Roots(key(head.location) for head in known.tables if head.location not in before)
        still: list[tuple[Finding, Stat]] = []
        for finding, stat in zip(some, stats, strict=True):
            unread = is_unread(finding.table, known, self._asked)
            taken = finding.path in live or finding.path in spooled or new_tables.of(key(finding.path)) is not None
            # An expiry still reads manifests that it has just dropped, to see which files go with them.
            taken = taken or (finding.content is FileContent.METADATA and finding.table in at_work)
            listed = finding.listed
            if not isinstance(stat, Stat) or listed is None or unread or taken:
                continue
            if self._context.storage.same(listed, stat):
                still.append((finding, stat))
        return still

    def _hit_cap(self) -> None:
        if self._counters.seen.cap_hit:
            return
        self._counters.note(cap_hit=True)
        self._context.ledger.change(
            audit.record,
            Event.CAP_HIT,
            run=self._run,
            cap=self._settings.deletes_max_per_run,
            missing=self._counters.done.missing,
            orphans=self._counters.files,
            storage=self._context.storage.kind.value,
            **self._counters.flags,
        )

    def _end(self, reason: AbortReason | None = None, why: str = "", *, waits: bool = True) -> None:
        """Stores the run's end. If the ledger is away, waits for it, under the lease: a run that had no other trouble
        must not look dead. With `waits` False it tries once: a person who interrupts a command does not wait."""
        self._watch.end_phase()
        self._counters.note(phases=self._watch.seconds)
        outcome, settings = self._counters.outcome(), self._settings

        def store() -> None:
            with self._context.ledger.write() as connection:
                if reason is None:
                    is_recorded = reconcile_runs.complete(connection, self._run, outcome)
                else:
                    is_recorded = reconcile_runs.abort(connection, self._run, outcome, reason, why)
                if not is_recorded:
                    reconcile_runs.record_late_end(connection, self._run, outcome)
                reconcile_runs.forget_old(
                    connection, runs_max=settings.history_runs, left_days=settings.quarantine_days
                )

        store_end(store, f"run {self._run} of the reconciler", self._watch.cancelled if waits else NOBODY_WAITS)
        self._activity.report("done" if reason is None else reason.value)


def _check(refusal: str | None) -> None:
    if refusal is not None:
        raise Aborted(AbortReason.GUARD, refusal)
