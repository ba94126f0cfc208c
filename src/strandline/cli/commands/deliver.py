"""tick, run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

import typer

from strandline.cli.command import DELIVERY, EVENT_LINES, Call, command
from strandline.cli.daemon import EventLog, run_loops
from strandline.cli.render import deliver
from strandline.cli.render.progress import delivering
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

app = typer.Typer()


@command(app, panel=DELIVERY)
def tick(
    call: Call,
    sink: str | None = typer.Option(None, metavar="NAME", help="Only this one.", show_default="all sinks"),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be sent, to whom; send and store nothing."),
) -> None:
    """Deliver once: every settled row that a sink does not have yet. Safe beside the daemon and beside itself.

    Ends with 0 if every sink has what was settled when it began; with 1 if one failed and is tried again later, or has
    rows to get and another deliverer holds it; with 3 if one is stopped and needs a person.
    """
    began = time.monotonic()
    if dry_run:
        _preview(call, sink)
        return
    lake = call.lake
    with delivering(call) as progress:
        lake.on_start = progress.on_start
        lake.delivery.recovery.catch_up()
        report = lake.delivery.tick(sink, progress=progress.on_rows)
    seconds = time.monotonic() - began
    call.show(documents.tick(report, seconds), *deliver.tick(report, seconds))
    call.exit(deliver.exit_code(report))


def _preview(call: Call, only: str | None) -> None:
    chosen = call.lake.delivery.list_sinks() if only is None else [call.lake.delivery.get(only)]
    with call.spinner("Starting Spark") as lake:
        found = [_preview_one(lake, record) for record in chosen]
    call.show(documents.tick_preview(found), *deliver.preview(found))
    call.exit(max((s.error.exit_code for s in found if s.error is not None), default=0))


def _preview_one(lake: Lake, record: SinkRecord) -> SinkPreview:
    """A sink that does not answer does not keep the others from being shown."""
    from strandline.deliver.plan.preview import SinkPreview

    try:
        return SinkPreview(record.name, state_of(record), lake.delivery.preview(record.name), None)
    except StrandlineError as e:
        return SinkPreview(record.name, state_of(record), (), e)


@command(app, panel=DELIVERY, json_help=EVENT_LINES)
def run(call: Call) -> None:
    """Keep delivering, in the foreground, until SIGTERM or Ctrl-C. What Spark is sending then is called off; the next
    deliverer goes on with the same chunks.

    Maintenance that has a schedule runs beside it, and so does the reconciler, if it is enabled: a run of it that is
    under way is called off. Writes a line for each sink that a tick did something for, for each run of maintenance and
    of the reconciler, and nothing while all is quiet. Sinks and schedules that are added or changed meanwhile are
    noticed. Starts no JVM before there is something to do. With --json every line is a JSON document of its own.
    """
    lake, journal = call.lake, DeliverLog(as_json=call.as_json)
    set_process_actor(Actor(system_user(), Trigger.DAEMON))

    def loops(stopping: Event) -> Iterator[Callable[[], None]]:
        journal.serving([s.name for s in lake.delivery.list_sinks()])
        yield partial(lake.delivery.run, stopping, journal.tick, partial(journal.failed, "tick_failed"), journal.well)
        # Both loops run always: a schedule may be applied at any time.
        failed, scheduled = partial(journal.failed, "maintenance_failed"), partial(journal.scheduled, lake)
        yield partial(lake.maintenance.run, stopping, journal.begun, journal.ended, failed, scheduled)
        failed = partial(journal.failed, "reconcile_failed")
        on = (journal.sweeping, journal.swept, failed, journal.sweep_scheduled)
        yield partial(lake.reconciler.run_on_schedule, stopping, *on)

    run_loops(lake, journal, loops)


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
            sent = {"rows": s.rows, "withheld": s.withheld or None, "chunks": s.chunks}
            self.write(s.did, sink=s.name, **sent, reason=s.reason, hint=s.hint)
        elif now != before and s.did in ("waiting", "stopped", "paused"):
            self.write(s.did, sink=s.name, reason=s.reason, hint=s.hint)
        elif s.did == "idle" and before[0] in ("waiting", "stopped", "paused"):
            self.write("well_again", sink=s.name)

    # Maintenance, from a thread of its own.

    def scheduled(self, lake: Lake, crons: Mapping[str, str]) -> None:
        self.write("scheduled", **(crons or {"maintenance": "never"}))
        for name in lake.maintenance.rules_without_dataset():
            hint = "There is no such dataset yet: check its retention rule."
            self.write("rule_without_dataset", dataset=name, hint=hint)

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
