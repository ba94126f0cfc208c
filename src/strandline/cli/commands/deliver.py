"""tick, run."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.daemon import EventLog, stopped_by_signals, wait_for
from strandline.cli.options import DELIVERY, ConfigOption, JsonOption, opened
from strandline.cli.output import Output
from strandline.cli.render import deliver
from strandline.cli.render.deliver_progress import delivering
from strandline.core.actor import Actor, Trigger, set_process_actor, system_user
from strandline.core.errors import StrandlineError
from strandline.status import documents
from strandline.status.sinks import state_of

if TYPE_CHECKING:
    from strandline.core.delivery_types import SinkRecord
    from strandline.core.reconcile_records import Asked
    from strandline.core.reconcile_records import Run as Sweep
    from strandline.core.settings_reconcile import ReconcileSettings
    from strandline.core.types import Dataset
    from strandline.deliver.plan.preview import SinkPreview
    from strandline.deliver.tick import SinkReport, TickReport
    from strandline.lake import Lake
    from strandline.ledger.maintain.runs import Kind, Run


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DELIVERY)(tick)
    app.command(rich_help_panel=DELIVERY)(run)


SinkOption = Annotated[
    str | None, typer.Option("--sink", metavar="NAME", help="Only this one.", show_default="all sinks")
]


def tick(
    sink: SinkOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent, to whom; send and store nothing.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Deliver once: every settled row that a sink does not have yet. Safe beside the daemon and beside itself.

    Ends with 0 if every sink has what was settled when it began; with 1 if one failed and is tried again later, or has
    rows to get and another deliverer holds it; with 3 if one is stopped and needs a person.
    """
    out = Output(as_json=json)
    began = time.monotonic()
    with opened(config) as lake:
        if dry_run:
            _preview(out, lake, sink)
            return
        with delivering(out) as progress:
            lake.on_start = progress.on_start
            lake.delivery.recovery.catch_up()
            report = lake.delivery.tick(sink, progress=progress.on_rows)
    seconds = time.monotonic() - began
    out.show(documents.tick(report, seconds), *deliver.tick(report, seconds))
    if code := deliver.exit_code(report):
        raise typer.Exit(code)


def _preview(out: Output, lake: Lake, only: str | None) -> None:
    chosen = lake.delivery.every() if only is None else [lake.delivery.get(only)]
    with out.working("Starting Spark") as say:
        lake.on_start = say
        found = [_preview_one(lake, record) for record in chosen]
    out.show(documents.tick_preview(found), *deliver.preview(found))
    if code := max((s.error.exit_code for s in found if s.error is not None), default=0):
        raise typer.Exit(code)


def _preview_one(lake: Lake, record: SinkRecord) -> SinkPreview:
    """A sink that does not answer does not keep the others from being shown."""
    from strandline.deliver.plan.preview import SinkPreview

    try:
        return SinkPreview(record.name, state_of(record), lake.delivery.preview(record.name), None)
    except StrandlineError as e:
        return SinkPreview(record.name, state_of(record), (), e)


def run(
    config: ConfigOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document per line on standard output, one for each event.")
    ] = False,
) -> None:
    """Keep delivering, in the foreground, until SIGTERM or Ctrl-C. What Spark is sending then is called off; the next
    deliverer goes on with the same chunks.

    Maintenance that has a schedule runs beside it, and so does the reconciler, if it is enabled: a run of it that is
    under way is called off. Writes a line for each sink that a tick did something for, for each run of maintenance and
    of the reconciler, and nothing while all is quiet. Sinks and schedules that are added or changed meanwhile are
    noticed. Starts no JVM before there is something to do. With --json every line is a JSON document of its own.
    """
    with opened(config) as lake:
        journal = DeliverLog(as_json=json)
        set_process_actor(Actor(system_user(), Trigger.DAEMON))
        stopping = threading.Event()
        lake.on_start = lambda words: journal.write("starting", what=words)
        with stopped_by_signals(stopping, journal), ThreadPoolExecutor(3, "strandline-run") as pool:
            journal.serving([s.name for s in lake.delivery.every()])
            # Not in the main thread, where PySpark would replace our handler for Ctrl-C by its own.
            loops = [pool.submit(lake.delivery.run, stopping, journal.tick, journal.trouble, journal.well)]
            # Both loops run always: a schedule may be applied at any time.
            keep, sweep = lake.maintenance.run, lake.reconciler.run_on_schedule
            told = lambda crons: journal.scheduled(lake, crons)  # noqa: E731
            loops.append(pool.submit(keep, stopping, journal.begun, journal.ended, journal.maintenance_trouble, told))
            heard = (journal.sweeping, journal.swept, journal.sweep_trouble, journal.sweep_scheduled)
            loops.append(pool.submit(sweep, stopping, *heard))
            wait_for(stopping, *loops)
        journal.write("stopped")


class DeliverLog(EventLog):
    """The daemon's log. It writes a state once, not again while it lasts."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self._serving: list[str] = []
        self._last: dict[str, tuple[str, str | None]] = {}

    def serving(self, sinks: list[str]) -> None:
        self._serving = sinks
        self.write("serving", sinks=self.listed(sinks))

    def tick(self, report: TickReport) -> None:
        names = [s.name for s in report.sinks] if report.serving is None else list(report.serving)
        if names != self._serving:
            self.serving(names)
        for s in report.sinks:
            self._sink(s)

    def _sink(self, s: SinkReport) -> None:
        now, before = (s.did, s.reason), self._last.get(s.name, ("idle", None))
        self._last[s.name] = now
        if s.did == "delivered" or s.rows or s.withheld:
            self.write(
                s.did,
                sink=s.name,
                rows=s.rows,
                withheld=s.withheld or None,
                chunks=s.chunks,
                reason=s.reason,
                hint=s.hint,
            )
        elif now != before and s.did in ("waiting", "stopped", "paused"):
            self.write(s.did, sink=s.name, reason=s.reason, hint=s.hint)
        elif s.did == "idle" and before[0] in ("waiting", "stopped", "paused"):
            self.write("well_again", sink=s.name)

    def trouble(self, error: StrandlineError) -> None:
        self.write("tick_failed", reason=error.message, hint=error.hint)

    def well(self) -> None:
        self.write("well_again")

    # Maintenance, from a thread of its own.

    def scheduled(self, lake: Lake, crons: Mapping[str, str]) -> None:
        self.write("scheduled", **(crons or {"maintenance": "never"}))
        for name in lake.maintenance.rules_without_dataset():
            self.write(
                "rule_without_dataset", dataset=name, hint="There is no such dataset yet: check its retention rule."
            )

    def begun(self, dataset: Dataset, kind: Kind) -> None:
        self.write("maintaining", kind=kind.value, dataset=dataset.name)

    def ended(self, run: Run) -> None:
        self.write(
            "maintained",
            kind=run.kind.value,
            dataset=run.dataset,
            outcome=None if run.outcome is None else run.outcome.value,
            run=run.id,
            seconds=run.seconds,
            reason=run.reason,
        )

    def maintenance_trouble(self, error: StrandlineError) -> None:
        self.write("maintenance_failed", reason=error.message, hint=error.hint)

    # The reconciler, from another thread.

    def sweep_scheduled(self, settings: ReconcileSettings) -> None:
        act = None if not settings.enabled else not settings.dry_run
        self.write("scheduled", reconcile=settings.schedule if settings.enabled else "never", act=act)

    def sweeping(self, asked: Asked) -> None:
        self.write("reconciling", act=asked.act)

    def swept(self, run: Sweep) -> None:
        found, done = run.outcome.found, run.outcome.done
        self.write(
            "reconciled",
            outcome="done" if run.aborted is None else run.aborted.value,
            run=run.id,
            missing=found.missing,
            orphans=found.orphans,
            dropped=done.missing or None,
            set_aside=done.orphans + done.superseded or None,
            restored=done.restored or None,
            partial=run.outcome.partial or None,
            doubts=", ".join(run.doubts) or None,
            reason=run.why or "; ".join(run.outcome.refusals) or None,
        )

    def sweep_trouble(self, error: StrandlineError) -> None:
        self.write("reconcile_failed", reason=error.message, hint=error.hint)
