"""Is anything wrong now? From the state of the lake to reasons and next steps, the worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from strandline.status.report import LakeStatus


class Severity(IntEnum):
    NOTICE = 1  # somebody decided it, or it can wait
    WARNING = 2  # goes on by itself or with some help; nothing is lost
    BROKEN = 3  # something stands still or may be lost until somebody acts


@dataclass(frozen=True, slots=True)
class Concern:
    severity: Severity
    subject: str
    reason: str
    next_step: str
    link: str


def concerns(status: LakeStatus) -> list[Concern]:
    found = [*_lake(status), *_datasets(status), *_sinks(status), *_received(status), *_drift(status)]
    return sorted(found, key=lambda c: (-c.severity, c.subject))


def _lake(status: LakeStatus) -> Iterator[Concern]:
    if status.problem is not None:
        step = "It settles with the next ingest; `strandline recover` does it now."
        yield Concern(Severity.WARNING, "the ledger", status.problem, step, "/audit")


def _datasets(status: LakeStatus) -> Iterator[Concern]:
    for d in status.datasets:
        if d.number_twice is not None:
            reason = f"sequence number {d.number_twice} is on two rows, so reads and sinks that reach it are refused"
            step = f"`strandline dataset show {d.name}` says what to do."
            yield Concern(Severity.BROKEN, d.name, reason, step, f"/datasets/{d.name}")
        elif d.problem is not None:
            step = f"`strandline dataset show {d.name}` says what to do."
            yield Concern(Severity.BROKEN, d.name, d.problem, step, f"/datasets/{d.name}")


def _sinks(status: LakeStatus) -> Iterator[Concern]:
    seen: set[str] = set()
    for s in status.sinks:
        at = f"/sinks/{s.name}"
        if s.quarantined:
            rows = "1 row waits" if s.quarantined == 1 else f"{s.quarantined:,} rows wait"
            where = "" if s.partition is None else f" ({s.partition})"
            reason = f"{rows} in quarantine because the destination refused them{where}"
            yield Concern(
                Severity.WARNING, s.name, reason, "Replay them, or discard them.", f"/quarantine/rows?sink={s.name}"
            )
        if s.name in seen:
            continue
        seen.add(s.name)
        if s.state == "stopped":
            reason = f"it is stopped: {s.reason or 'no reason is recorded'}"
            yield Concern(Severity.BROKEN, s.name, reason, "Repair the cause, then resume or recover it.", at)
        elif s.state == "waiting":
            reason = f"{s.retries:,} attempts in a row failed: {s.reason or 'no reason is recorded'}"
            yield Concern(Severity.WARNING, s.name, reason, "It tries again by itself. Look at its destination.", at)
        elif s.state == "paused":
            yield Concern(Severity.NOTICE, s.name, "it is paused, and gets no rows", "Resume it when it may go on.", at)
        if s.lost_rows or s.unknown_losses:
            many = f"{s.lost_rows:,} rows were" if s.lost_rows else "rows may have been"
            reason = f"{many} deleted before the sink had them"
            yield Concern(Severity.WARNING, s.name, reason, "Verify it to see what its destination has.", at)


def _received(status: LakeStatus) -> Iterator[Concern]:
    for r in status.receive or ():
        at = f"/datasets/{r.dataset}"
        if r.set_aside.bodies:
            reason = f"{r.set_aside.bodies:,} received bodies with {r.set_aside.rows:,} rows could not be ingested"
            step = f"`strandline spool list {r.dataset}` shows why."
            yield Concern(Severity.BROKEN, r.dataset, reason, step, at)
        if r.unrecorded.files:
            reason = (
                f"{r.unrecorded.files:,} received files could not be recorded: {r.unrecorded.reason or 'see the log'}"
            )
            yield Concern(Severity.BROKEN, r.dataset, reason, "`strandline status` names them.", at)


def _drift(status: LakeStatus) -> Iterator[Concern]:
    found = status.reconcile
    at = "/drift"
    if found.aborted is not None:
        reason = f"the last run ended early ({found.aborted})"
        yield Concern(Severity.WARNING, "drift", reason, "Read the run, repair the cause, and run it again.", at)
    if found.compared is not None and found.compared.missing:
        reason = f"{found.compared.missing:,} files that tables need are missing from storage"
        yield Concern(Severity.BROKEN, "drift", reason, "Read the run before anything is deleted.", at)
    if found.compared is not None and found.compared.partial:
        reason = "the last comparison could not read everything: there may be more drift than it found"
        yield Concern(Severity.WARNING, "drift", reason, "Read what failed, and run it again.", at)
    elif found.compared is not None and found.compared.orphans:
        reason = f"{found.compared.orphans:,} orphan files lie in storage"
        yield Concern(Severity.NOTICE, "drift", reason, "Act on the run's findings, or leave them to the schedule.", at)
