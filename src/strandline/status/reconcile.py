"""What the reconciler found last: the part of the read model behind `status` and `metrics` that speaks of drift.

It asks the ledger and nobody else. What is not known is None, never 0: before the first run nothing is, and a run that
ended before it had compared knows nothing of drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from strandline.core.reconcile_records import Run
from strandline.core.settings import LakeConfig
from strandline.ledger.engine import Ledger
from strandline.ledger.reconcile import reconcile_runs


@dataclass(frozen=True, slots=True)
class Compared:
    """What a run that compared found and left."""

    run: int
    at: datetime
    orphans: int
    missing: int
    partial: bool


@dataclass(frozen=True, slots=True)
class ReconcileStatus:
    """The newest run that has ended, and the newest that compared: they differ where runs end too early."""

    last_run: int | None = None
    at: datetime | None = None
    ended_at: datetime | None = None
    orphans: int | None = None
    missing: int | None = None
    partial: bool | None = None
    aborted: str | None = None
    held: int | None = None
    """Files that it set aside and that are still there."""
    compared: Compared | None = None
    doubts: tuple[str, ...] | None = None
    """Why what it says is not the whole truth."""


NOT_YET = ReconcileStatus()
"""Before the first run."""


def look(config: LakeConfig, ledger: Ledger) -> ReconcileStatus:
    with ledger.read() as connection:
        runs = reconcile_runs.latest(connection, runs_max=config.settings.reconcile.history_runs)
    ended = [run for run in runs if run.ended_at is not None]
    if not ended:
        return NOT_YET
    last, compared = ended[0], next((_compared(run) for run in ended if has_compared(run)), None)
    own = compared if compared is not None and compared.run == last.id else None
    return ReconcileStatus(
        last.id,
        last.started_at,
        last.ended_at,
        None if own is None else own.orphans,
        None if own is None else own.missing,
        None if own is None else own.partial,
        None if last.aborted is None else last.aborted.value,
        last.held,
        compared,
        tuple(doubt.value for doubt in last.doubts),
    )


def has_compared(run: Run) -> bool:
    """A run that ended early with nothing counted did not get so far, or there was nothing at all."""
    return run.aborted is None or bool(run.outcome.listed or run.outcome.referenced)


def _compared(run: Run) -> Compared:
    outcome = run.outcome
    found, done = outcome.found, outcome.done
    return Compared(
        run.id,
        run.started_at,
        max(found.orphans - done.orphans, 0),  # a run that died counts what was superseded among what it did
        # What was brought back may be more: of a table that could not be read nothing was called missing.
        max(found.missing - done.missing - done.restored, 0),
        outcome.partial,
    )
