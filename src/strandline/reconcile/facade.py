"""`lake.reconciler`: finds and repairs drift between tables and storage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strandline.core import failpoints
from strandline.core.actor import SCHEDULE, acting_as
from strandline.core.errors import (
    LeaseLost,
    SweepRunning,
    UsageError,
)
from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import Asked, ReconcileRun, ReconcileRunId, Suspect, Swept
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.settings.reconcile import ReconcileSettings
from strandline.iceberg.lake_tables import LakeTables
from strandline.jobs.loop import LoopControl
from strandline.jobs.schedule import FollowedSchedules
from strandline.ledger import applied_settings, audit
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.reconcile import quarantined_files, reconcile_runs, suspect_files
from strandline.ledger.recovery import Recovery
from strandline.ledger.witness import Witness
from strandline.reconcile.ledger_context import LedgerContextLoader
from strandline.reconcile.paths import canonical
from strandline.reconcile.preparation import Preparation
from strandline.reconcile.run_listener import RunListener
from strandline.reconcile.storage.folder_id import find_folder_id, take_folder_id

if TYPE_CHECKING:
    from strandline.reconcile.context import SweepContext
    from strandline.reconcile.model import Storage
    from strandline.reconcile.quarantine import FilesToPurge, OnFiles, PurgedFiles, Restored

_MEMORY = Path("cache/manifests")  # below the lake's folder; may be deleted at any time
_POLL_SECONDS = 5.0  # how often the daemon checks whether a run is due


class SweepListener(Protocol):
    """Gets what scheduled runs do. `cli/daemon_log.DaemonLog` implements it."""

    def sweep_scheduled(self, settings: ReconcileSettings) -> None: ...

    def sweeping(self, asked: Asked) -> None: ...

    def sweep_busy(self, asked: Asked) -> None:
        """A run is due, and waits for another one."""

    def swept(self, run: ReconcileRun) -> None: ...


@dataclass(frozen=True)
class _ScheduledRun(RunListener):
    asked: Asked
    listener: SweepListener

    def begun(self, run: ReconcileRunId) -> None:
        self.listener.sweeping(self.asked)


class Reconciler:
    def __init__(
        self,
        config: LakeConfig,
        ledger: Ledger,
        tables: LakeTables,
        witness: Witness,
        recovery: Recovery,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._tables = tables
        self._loader = LedgerContextLoader(config, ledger, witness)
        self._preparation = Preparation(tables, self._loader, recovery)
        self._followed = FollowedSchedules(
            ledger,
            {"reconcile": config.settings.reconcile.schedule},
            jitter_seconds_max=config.settings.run.jitter_seconds_max,
        )
        self._tried: datetime | None = None
        self._is_waiting = False  # a run is due, and another is under way

    def runs(self, runs_max: int | None = None, *, before: int | None = None) -> list[ReconcileRun]:
        """Newest first; `before` is the id of the last run of the previous page."""
        most = self._config.settings.reconcile.history_runs if runs_max is None else runs_max
        return self._ledger.query(reconcile_runs.latest, runs_max=most, before=before)

    def quarantined(self, run: int | None = None, *, after: int | None = None, files_max: int = 100) -> list[Swept]:
        """Files that are in quarantine as far as the ledger knows, of one run or of all; `after` is the id of the last
        file of the previous page. Raises NoSuchRun."""
        with self._ledger.read() as connection:
            if run is not None:
                reconcile_runs.get(connection, run)
            return quarantined_files.page(connection, run=run, after=after, files_max=files_max)

    def show(self, run: int) -> tuple[ReconcileRun, list[Swept]]:
        with self._ledger.read() as connection:
            return reconcile_runs.get(connection, run), quarantined_files.of_run(connection, ReconcileRunId(run))

    def show_some(self, run: int, *, files_max: int) -> tuple[ReconcileRun, list[Swept], int]:
        """A run, its first files, and how many it has. Raises NoSuchRun."""
        with self._ledger.read() as connection:
            found = reconcile_runs.get(connection, run)
            files = quarantined_files.page_of_run(connection, found.id, after=None, files_max=files_max)
            return found, files, quarantined_files.count_of_run(connection, found.id)

    def files_of(self, run: int, *, after: int | None = None, files_max: int = 100) -> list[Swept]:
        """Files that a run acted on; `after` is the id of the last file of the previous page. Raises NoSuchRun."""
        with self._ledger.read() as connection:
            found = reconcile_runs.get(connection, run)
            return quarantined_files.page_of_run(connection, found.id, after=after, files_max=files_max)

    def run(
        self,
        asked: Asked,
        *,
        inventory_file: Path | None = None,
        cancelled: threading.Event | None = None,
        listener: RunListener | None = None,
        is_due: Callable[[], bool] = lambda: True,
    ) -> ReconcileRun:
        """Does one run. Raises SweepRunning if another is under way, or if `is_due` says under the lease that another
        has done it. It starts Spark only above `references_max`, to drop entries from a table of format version 3, and
        to resync a restored ledger before it acts."""
        from strandline.reconcile.references.manifest_cache import forget_old
        from strandline.reconcile.sweep import sweep

        memory = self._config.home / _MEMORY
        forget_old(str(memory))
        with self._context(inventory_file, None if asked.act else memory) as context:
            return sweep(
                context,
                asked,
                is_due=is_due,
                cancelled=cancelled,
                listener=listener,
            )

    def cancel(self, run: int) -> ReconcileRun:
        """Calls a run off, also one of another process: it ends before its next batch. One that has ended or
        died stays as it is. Raises NoSuchRun."""
        with self._ledger.write() as connection:
            found = reconcile_runs.get(connection, run)
            if found.ended_at is None and reconcile_runs.ask_to_stop(connection, run):
                audit.record(connection, Event.RUN_CALLED_OFF, run=run)
            found = reconcile_runs.get(connection, run)
        failpoints.hit("reconcile.after_called_off")
        return found

    @property
    def settings(self) -> ReconcileSettings:
        """With the schedule that was applied; it may change while this process runs."""
        return self._ledger.query(applied_settings.effective, self._config).reconcile

    def run_if_due(self, listener: SweepListener, *, cancelled: threading.Event | None = None) -> ReconcileRun | None:
        """The daemon calls this regularly. None if no run is due, or another process does it. A run that was missed
        because no daemon ran is made up for, once. If another run is under way, this one stays due until the ledger has
        one that did as much; the listener gets that once."""
        settings, now = self.settings, utc_now()
        asked = Asked(act=not settings.dry_run)
        self._followed = self._following(settings)
        if not settings.enabled:
            return None
        before, folder = self._tried, self._folder()

        def is_due() -> bool:  # with the time of each call: a run that began after that time would not count
            last = self._begun(asked, before, folder)
            return self._followed.is_due("reconcile", settings.schedule, last=last, now=utc_now())

        if not is_due():
            self._is_waiting = False
            return None
        was_waiting, self._is_waiting = self._is_waiting, False
        self._tried = now
        try:
            with acting_as(SCHEDULE):
                return self.run(asked, cancelled=cancelled, listener=_ScheduledRun(asked, listener), is_due=is_due)
        except SweepRunning:
            self._tried, self._is_waiting = before, True
            if not was_waiting:
                listener.sweep_busy(asked)
            return None
        except LeaseLost:
            return None

    def next_run(self) -> datetime | None:
        """When `run_if_due` begins a run, or up to `run.jitter_seconds_max` later. In the past if a run is due now.
        None if the schedule is not enabled."""
        settings = self.settings
        if not settings.enabled:
            return None
        last = self._begun(Asked(act=not settings.dry_run), self._tried, self._folder(find_folder_id))
        return self._following(settings).next_time(settings.schedule, last=last, now=utc_now())

    def _following(self, settings: ReconcileSettings) -> FollowedSchedules:
        crons = {"reconcile": settings.schedule}
        return self._followed if crons == self._followed.crons else replace(self._followed, crons=crons, since=None)

    def _begun(self, asked: Asked, tried: datetime | None, folder: str | None) -> datetime | None:
        """When the last run began that did at least as much, in this folder if each machine has its own. A run of this
        process counts even if it failed before it was on record."""
        like = (
            run.started_at
            for run in self.runs()
            if (folder is None or run.folder in (None, folder)) and (run.asked.act or not asked.act)
        )
        return max(filter(None, (next(like, None), tried)), default=None)

    def run_on_schedule(self, control: LoopControl, listener: SweepListener) -> None:
        """Runs until `control.stopping` is set. That also cancels a run under way, which ends before its next batch. A
        schedule that is applied meanwhile counts at once."""
        reported: ReconcileSettings | None = None

        def take_turn() -> None:
            nonlocal reported
            settings = self.settings
            if settings != reported and (settings.enabled or reported is not None):
                reported = settings
                listener.sweep_scheduled(settings)
            run = self.run_if_due(listener, cancelled=control.stopping)
            if run is not None:
                listener.swept(run)

        control.repeat(take_turn, name="the reconciler", poll_seconds=_POLL_SECONDS)

    def suspects(self) -> list[Suspect]:
        """Orphan files that are probably the files of damaged entries, by path."""
        return self._ledger.query(suspect_files.list_suspects)

    def release(self, path: str) -> Suspect:
        """Records that a person has declared a suspected file an orphan: from now on runs treat it like any other,
        and may drop the entry that it seemed to belong to."""
        with self._ledger.write() as connection:
            released = suspect_files.release(connection, canonical(path))
            if released is None:
                raise UsageError(
                    f"{path} is not suspected of being the file of a damaged entry",
                    hint="`strandline reconcile suspects` shows those that are.",
                )
            audit.record(
                connection, Event.FILE_RELEASED, path=released.path, table=released.table, entry=released.entry
            )
        return released

    def restore(self, run: int, *, on_progress: OnFiles = lambda done, total: None) -> Restored:
        from strandline.reconcile import quarantine

        self._preparation.for_files()
        with self._context() as context:
            return quarantine.restore(context, run, on_progress)

    def purge(self, run: int | None = None, *, on_progress: OnFiles = lambda done, total: None) -> PurgedFiles:
        from strandline.reconcile import quarantine

        self._preparation.for_files()
        with self._context() as context:
            return quarantine.purge(context, run, on_progress)

    def files_to_purge(self, run: int | None = None) -> FilesToPurge:
        """The dry run of `purge`."""
        from strandline.reconcile import quarantine

        self._preparation.open_catalog()
        with self._context() as context:
            return quarantine.files_to_purge(context, run)

    @cached_property
    def storage(self) -> Storage:
        settings = self._config.settings
        if settings.warehouse.is_s3:
            from strandline.reconcile.storage.s3_store import S3Store

            return S3Store(settings.warehouse, requests_at_once=settings.reconcile.recheck_concurrency)
        from strandline.reconcile.storage.local_store import LocalStore

        return LocalStore()

    @contextmanager
    def _context(self, inventory_file: Path | None = None, memory: Path | None = None) -> Iterator[SweepContext]:
        from strandline.reconcile.context import SweepContext
        from strandline.reconcile.fallback import FallbackSurveyor
        from strandline.reconcile.references.lake_catalog import LakeCatalog
        from strandline.reconcile.survey import LakeSurveyor

        find_file = self.storage.find_file
        light = LakeSurveyor(self._config, self._tables, find_file, inventory_file=inventory_file, memory=memory)
        surveyor = FallbackSurveyor(light, self._tables)
        try:
            yield SweepContext(
                self._ledger,
                self._config.settings.reconcile,
                self.storage,
                LakeCatalog(self._tables),
                surveyor,
                self._loader,
                self._preparation,
                canonical(self._config.warehouse_url),
                self._folder(),
            )
        finally:
            surveyor.close()

    def _folder(self, folder_id: Callable[[Path], str | None] = take_folder_id) -> str | None:
        """The id of the warehouse's folder; None if a path means the same on every machine."""
        warehouse = self._config.warehouse_folder
        return None if self._loader.own_origin or warehouse is None else folder_id(warehouse)
