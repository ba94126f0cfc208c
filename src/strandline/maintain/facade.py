"""The maintenance API of a lake: each kind on demand, all of them by schedule, and the record of runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

from strandline.core import failpoints
from strandline.core.actor import SCHEDULE, acting_as
from strandline.core.errors import StrandlineError, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.records.maintenance_records import MaintenanceKind
from strandline.core.types import Dataset
from strandline.jobs.loop import LoopControl
from strandline.jobs.schedule import FollowedSchedules
from strandline.ledger import applied_settings, audit
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.maintain import runs as maintenance
from strandline.ledger.maintain.runs import MaintenanceRun, MaintenanceRunId
from strandline.ledger.replicate import sites
from strandline.maintain.context import MaintainContext, MaintainProgress, quiet
from strandline.maintain.runs import RunControl, RunResult, StillAlive, perform, rehearse, run_scheduled
from strandline.maintain.schedule import Job, crons, jobs

if TYPE_CHECKING:
    from strandline.core.settings.maintain import MaintainSettings, RetainSettings
    from strandline.maintain.compact import Compacted
    from strandline.maintain.expire import Expired
    from strandline.maintain.purge.plan import PurgeResult
    from strandline.maintain.retain_result import Retained

log = logging.getLogger(__name__)

_POLL_SECONDS = 5.0  # how often the daemon checks whether a job is due
CheckedWork = Callable[[MaintainProgress, StillAlive], Any]


class MaintenanceListener(Protocol):
    """Gets what scheduled maintenance does. `cli/daemon_log.DaemonLog` implements it."""

    def scheduled(self, crons: Mapping[str, str], unused_rules: Sequence[str]) -> None:
        """`crons` by kind of work; `unused_rules`: those for datasets that do not exist."""

    def begun(self, dataset: Dataset, kind: MaintenanceKind) -> None: ...

    def ended(self, run: MaintenanceRun) -> None: ...


@dataclass(frozen=True)
class Maintenance:
    """`lake.maintenance`. Everything here is safe while ingest, delivery and other maintenance run."""

    context: MaintainContext

    # On demand.

    def compact(
        self,
        dataset: str,
        *,
        dry_run: bool = False,
        progress: MaintainProgress = quiet,
        control: RunControl | None = None,
    ) -> RunResult[Compacted]:
        """Rewrites small files as large ones, with rows ordered by sequence number."""
        target = self._dataset(dataset)
        work = lambda checked, alive: self._compact(target, dry_run, checked, alive)  # noqa: E731
        return self._run(target, MaintenanceKind.COMPACT, work, dry_run, progress, control)

    def retain(
        self,
        dataset: str,
        *,
        older_than: timedelta | None = None,
        column: str | None = None,
        on_lag: Literal["hold", "drop"] | None = None,
        drop_after: timedelta | None = None,
        paused_sinks: Literal["count", "ignore"] | None = None,
        accept_clock: bool = False,
        dry_run: bool = False,
        progress: MaintainProgress = quiet,
        control: RunControl | None = None,
    ) -> RunResult[Retained]:
        """Deletes rows that are old enough and that every sink has. Options that are not given come from the dataset's
        rule in the settings; without a rule, `older_than` is required."""
        target = self._dataset(dataset)
        options = {"column": column, "on_lag": on_lag, "drop_after": drop_after, "paused_sinks": paused_sinks}
        rule = self._rule(target, older_than=older_than, **options)
        work = lambda checked, _: self._retain(target, rule, accept_clock, dry_run, checked)  # noqa: E731
        return self._run(target, MaintenanceKind.RETAIN, work, dry_run, progress, control)

    def expire(
        self,
        dataset: str,
        *,
        older_than: timedelta | None = None,
        keep_min: int | None = None,
        dry_run: bool = False,
        progress: MaintainProgress = quiet,
        control: RunControl | None = None,
    ) -> RunResult[Expired]:
        """Removes snapshots that nobody needs any more, and files that only they had."""
        target = self._dataset(dataset)
        work = lambda checked, _: self._expire(target, older_than, keep_min, dry_run, checked)  # noqa: E731
        return self._run(target, MaintenanceKind.EXPIRE, work, dry_run, progress, control)

    def purge(
        self,
        dataset: str,
        where: str,
        *,
        keep_snapshots: bool = False,
        dry_run: bool = False,
        progress: MaintainProgress = quiet,
        control: RunControl | None = None,
    ) -> RunResult[PurgeResult]:
        """Deletes rows that match a condition everywhere in the lake. Copies at sinks stay; the result names them. A
        follower refuses it: a purge comes from its leader."""
        self.context.ledger.query(sites.check_leads)
        target = self._dataset(dataset)

        def work(checked: MaintainProgress, alive: StillAlive) -> PurgeResult:
            from strandline.maintain.purge.run import purge

            options = {"keep_snapshots": keep_snapshots, "dry_run": dry_run}
            return purge(self.context, target, where, **options, progress=checked, alive=alive)

        return self._run(target, MaintenanceKind.PURGE, work, dry_run, progress, control)

    def _run(
        self, target: Dataset, kind: MaintenanceKind, work: CheckedWork, dry_run: bool, progress: MaintainProgress,
        control: RunControl | None,
    ) -> RunResult[Any]:  # fmt: skip
        run_control = control or RunControl()

        def catch_up_and_work(alive: StillAlive) -> Any:
            # Catching up may take long. The run is on record by now, so that people can see it and call it off.
            self.context.ingestion.catch_up()
            run_control.check()
            return work(run_control.checking(progress), alive)

        return (rehearse if dry_run else perform)(self.context, target, kind, catch_up_and_work, run_control)

    def cancel(self, run: int) -> MaintenanceRun:
        """Calls a run off, also one of another process: it ends before its next durable step. One that has ended stays
        as it is, and one whose process has died is closed. Raises NoSuchRun."""
        lease_seconds = self.context.config.settings.ingest.lease_seconds
        with self.context.ledger.write() as connection:
            maintenance.close_dead(connection, utc_now(), lease_seconds=lease_seconds)
            record = maintenance.get(connection, run)
            if maintenance.ask_to_stop(connection, run):
                called_off = {"run": run, "dataset": record.dataset, "kind": record.kind.value}
                audit.record(connection, Event.MAINTENANCE_CALLED_OFF, **called_off)
            record = maintenance.get(connection, run)
        failpoints.hit("maintain.after_called_off")
        return record

    # Shared by runs on demand and scheduled runs.

    def _compact(self, target: Dataset, dry_run: bool, progress: MaintainProgress, alive: StillAlive) -> Compacted:
        from strandline.maintain.compact import compact

        return compact(self.context, target, dry_run=dry_run, progress=progress, alive=alive)

    def _retain(
        self, target: Dataset, rule: RetainSettings, accept_clock: bool, dry_run: bool, progress: MaintainProgress
    ) -> Retained:
        from strandline.maintain.retain import retain

        return retain(
            self.context, target, rule, now=utc_now(), accept_clock=accept_clock, dry_run=dry_run, progress=progress
        )

    def _expire(
        self,
        target: Dataset,
        older_than: timedelta | None,
        keep_min: int | None,
        dry_run: bool,
        progress: MaintainProgress,
    ) -> Expired:
        from strandline.maintain.expire import expire
        from strandline.maintain.expire_plan import ExpireOptions

        s = self.context.config.settings.maintain.expire
        options = ExpireOptions(
            s.older_than if older_than is None else older_than, s.keep_min if keep_min is None else keep_min
        )
        return expire(self.context, target, options, dry_run=dry_run, progress=progress)

    def _rule(self, target: Dataset, **options: Any) -> RetainSettings:
        from pydantic import ValidationError

        from strandline.core.settings.maintain import RetainSettings

        given = {name: value for name, value in options.items() if value is not None}
        stored = self._rules().get(target.name)
        values = ({} if stored is None else stored.model_dump()) | given
        if given.get("on_lag") == "hold":
            values["drop_after"] = given.get("drop_after")
        if "older_than" not in values:
            raise UsageError(
                f"there is no retention rule for {target.name}",
                hint='Pass --older-than 30d, or set a rule: [maintain.retain.<dataset>] older_than = "30d".',
            )
        try:
            return RetainSettings(**values)
        except ValidationError as e:
            problems = "; ".join(str(err["msg"]).removeprefix("Value error, ") for err in e.errors())
            raise UsageError(f"this rule is invalid: {problems}") from e

    def _rules(self) -> dict[str, RetainSettings]:
        return self._settings().rules()

    def _settings(self) -> MaintainSettings:
        """The settings, with the applied rules and schedules, which may change while this process runs."""
        return self.context.ledger.query(applied_settings.effective, self.context.config).maintain

    # By schedule.

    def rules_without_dataset(self) -> list[str]:
        """Rules for datasets that do not exist: probably typos."""
        names = {d.name for d in self.context.ledger.query(datasets.list_datasets)}
        return sorted(set(self._rules()) - names)

    def run(self, control: LoopControl, listener: MaintenanceListener) -> None:
        """Runs the jobs that are due, one after the other, until `control.stopping` is set. Setting it also calls off
        the job under way: that ends before its next durable step, and its Spark jobs are cancelled. Several daemons on
        one ledger share the jobs. Schedules that are applied meanwhile count at once."""
        jitter = self.context.config.settings.run.jitter_seconds_max
        followed = FollowedSchedules(self.context.ledger, {}, jitter_seconds_max=jitter)

        def run_due_jobs() -> None:
            nonlocal followed
            by_kind = {kind.value: cron for kind, cron in crons(self._settings()).items()}
            if by_kind != followed.crons:
                followed = replace(followed, crons=by_kind, since=None)
                listener.scheduled(by_kind, self.rules_without_dataset())
            self.run_what_is_due(control.stopping, followed, listener)

        control.repeat(run_due_jobs, name="maintenance", poll_seconds=_POLL_SECONDS)

    def run_what_is_due(
        self, stopping: threading.Event, followed: FollowedSchedules, listener: MaintenanceListener
    ) -> None:
        """Runs everything that is due now. A job that fails does not stop the next one."""
        live = self.context.ledger.query(datasets.list_datasets)
        settings = self._settings()
        for job in jobs(settings, live, settings.rules()):
            if stopping.is_set():
                return
            last = self.context.ledger.query(maintenance.last_scheduled, job.dataset.id, job.kind)
            began = None if last is None else last.started_at
            if followed.is_due(f"{job.kind.value} {job.dataset.name}", job.cron, last=began, now=utc_now()):
                with acting_as(SCHEDULE):
                    self._run_job(job, None if last is None else last.id, RunControl(stopping), listener)

    def _run_job(
        self, job: Job, after: MaintenanceRunId | None, control: RunControl, listener: MaintenanceListener
    ) -> None:
        checked = control.checking(quiet)

        def work(alive: StillAlive) -> Any:
            listener.begun(job.dataset, job.kind)
            self.context.ingestion.catch_up()
            control.check()
            match job.kind:
                case MaintenanceKind.COMPACT:
                    return self._compact(job.dataset, False, checked, alive)
                case MaintenanceKind.NUMBER:
                    return self.context.ingestion.number(job.dataset)
                case MaintenanceKind.EXPIRE:
                    return self._expire(job.dataset, None, None, False, checked)
                case _:
                    return self._retain(job.dataset, self._rule(job.dataset), False, False, checked)

        try:
            done = run_scheduled(self.context, job.dataset, job.kind, work, control, after=after)
        except Exception as e:
            # A failure that was recorded is reported like every other outcome; one that was not is raised.
            last = self.context.ledger.query(maintenance.last_scheduled, job.dataset.id, job.kind)
            if last is None or last.id == after or last.outcome is None:
                raise
            if not isinstance(e, StrandlineError):
                log.exception("%s of %s failed with an unexpected error", job.kind.value, job.dataset.name)
            listener.ended(last)
            return
        if done is not None:
            listener.ended(done.run)

    # The record.

    def runs(
        self,
        dataset: str | None = None,
        kind: str | None = None,
        *,
        only: Collection[str] | None = None,
        before: int | None = None,
        runs_max: int = 20,
    ) -> list[MaintenanceRun]:
        """Runs, newest first; of a dataset, or of those in `only` (full names). `before`: the last id of the page
        before."""
        ids = {d.name: d.id for d in self.context.ledger.query(datasets.list_datasets)}
        chosen = None if only is None else [ids[name] for name in only if name in ids]
        if dataset is not None:
            chosen = [self._dataset(dataset).id]
        latest = self.context.ledger.query(
            maintenance.latest,
            datasets=chosen,
            kind=None if kind is None else MaintenanceKind(kind),
            before=before,
            runs_max=runs_max,
        )
        return list(map(self._as_of_now, latest))

    def get(self, run: int) -> MaintenanceRun:
        return self._as_of_now(self.context.ledger.query(maintenance.get, run))

    def _as_of_now(self, run: MaintenanceRun) -> MaintenanceRun:
        return run.as_of(utc_now(), lease_seconds=self.context.config.settings.ingest.lease_seconds)

    def _dataset(self, name: str) -> Dataset:
        from strandline.iceberg.metadata.identifier import full_name

        return self.context.ledger.query(datasets.get, full_name(name))
