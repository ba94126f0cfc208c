"""The log of a command that keeps running: one line per event. A state is written once, not again while it lasts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.core.text.masking import masked_within

if TYPE_CHECKING:
    from strandline.core.errors import StrandlineError
    from strandline.core.records.maintenance_records import MaintenanceKind
    from strandline.core.records.reconcile_records import Asked
    from strandline.core.records.reconcile_records import ReconcileRun as Sweep
    from strandline.core.settings.reconcile import ReconcileSettings
    from strandline.core.types import Dataset
    from strandline.deliver.tick import SinkReport, TickReport
    from strandline.ledger.maintain.runs import MaintenanceRun
    from strandline.receive.intake import BatchReport
    from strandline.replicate.follow.follower import FollowReport


class DaemonLog:
    """Writes to standard output: JSON, or `key=value` for people. The loops of a process share it."""

    def __init__(self, *, as_json: bool) -> None:
        import structlog

        render = structlog.processors.JSONRenderer() if as_json else structlog.processors.LogfmtRenderer()
        self._log = structlog.wrap_logger(
            structlog.WriteLogger(sys.stdout),
            processors=[structlog.processors.TimeStamper("iso", utc=True, key="at"), _in_order, _masked, render],
        )
        self.as_json = as_json
        self._serving: list[str] = []
        self._sinks: dict[str, tuple[str, str | None]] = {}
        self._waiting: dict[str, str | None] = {}

    def write(self, event: str, **values: object) -> None:
        self._log.info(event, **{k: v for k, v in values.items() if v is not None})

    def failed(self, event: str, error: StrandlineError) -> None:
        self.write(event, reason=error.message, hint=error.hint)

    def listed(self, names: list[str]) -> list[str] | str:
        return names if self.as_json else ",".join(names) or "none yet"

    def listening(self, url: str, datasets: list[str] | None = None) -> None:
        what = "api" if datasets is None else "receiver"
        self.write("listening", what=what, url=url, datasets=None if datasets is None else self.listed(datasets))

    # Delivery.

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
        now, before = (s.did, s.reason), self._sinks.get(s.name, ("idle", None))
        self._sinks[s.name] = now
        if s.did == "delivered" or s.rows or s.withheld:
            sent = {"rows": s.rows, "withheld": s.withheld or None, "chunks": s.chunks}
            self.write(s.did, sink=s.name, **sent, reason=s.reason, hint=s.hint)
        elif now != before and s.did in ("waiting", "stopped", "paused"):
            self.write(s.did, sink=s.name, reason=s.reason, hint=s.hint)
        elif s.did == "idle" and before[0] in ("waiting", "stopped", "paused"):
            self.write("well_again", sink=s.name)

    # Maintenance.

    def scheduled(self, crons: Mapping[str, str], unused_rules: Sequence[str]) -> None:
        self.write("scheduled", **(crons or {"maintenance": "never"}))
        for name in unused_rules:
            hint = "There is no such dataset yet: check its retention rule."
            self.write("rule_without_dataset", dataset=name, hint=hint)

    def begun(self, dataset: Dataset, kind: MaintenanceKind) -> None:
        self.write("maintaining", kind=kind.value, dataset=dataset.name)

    def ended(self, run: MaintenanceRun) -> None:
        self.write(
            "maintained",
            kind=run.kind.value,
            dataset=run.dataset,
            outcome=None if run.outcome is None else run.outcome.value,
            run=run.id,
            seconds=run.seconds,
            reason=run.reason,
        )

    # The reconciler.

    def sweep_scheduled(self, settings: ReconcileSettings) -> None:
        act = None if not settings.enabled else not settings.dry_run
        self.write("scheduled", reconcile=settings.schedule if settings.enabled else "never", act=act)

    def sweeping(self, asked: Asked) -> None:
        self.write("reconciling", act=asked.act)

    def sweep_busy(self, asked: Asked) -> None:
        self.write("reconciling", outcome="busy", act=asked.act, reason="another run is under way; it begins after it")

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

    # Following a leader.

    def followed(self, report: FollowReport) -> None:
        for name in report.made:
            self.write("dataset_made", dataset=name)
        for name in report.dropped:
            self.write("dataset_dropped", dataset=name)
        if report.applied:
            self.write("applied", items=len(report.applied), last=max(r.hi for r in report.applied))

    # The receiver's intake.

    def batch(self, report: BatchReport) -> None:
        rows, why = {"rows": report.rows}, {"reason": report.reason, "hint": report.hint}
        batch = {"dataset": report.dataset, "batch": report.batch_id}
        if report.did == "waiting":
            if self._waiting.get(report.batch_id) != report.reason:
                self._waiting[report.batch_id] = report.reason
                self.write("waiting", **batch, **rows, **why)
            return
        waited = self._waiting.pop(report.batch_id, None) is not None
        if report.did != "ingested":
            self.write(report.did, **batch, bodies=report.bodies, **rows, **why)
            return
        if waited:
            self.write("well_again", **batch)
        numbers = None if report.numbers is None else str(report.numbers)
        self.write("ingested", dataset=report.dataset, **rows, bodies=report.bodies, numbers=numbers)


def _masked(logger: object, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {key: masked_within(value) for key, value in event.items()}


def _in_order(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {"at": event.pop("at"), "event": event.pop("event"), **event}
