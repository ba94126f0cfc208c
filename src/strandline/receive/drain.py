"""Ingests at once everything that was received for a dataset, for operations that need every row of it."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.errors import RefusedError
from strandline.core.retry import RetryPolicy
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.text.wording import plural
from strandline.core.types import Dataset
from strandline.ledger.receive import batches, ended_batches, receive_holds
from strandline.receive.intake import Intake, IntakeContext

# for a batch that another receiver is ingesting, or that waits for its retry
_WITHOUT_PROGRESS = RetryPolicy(0.1, 0.1, seconds_max=60.0)


def drain(context: IntakeContext, dataset: Dataset) -> int:
    """Ingests the bodies that wait, and returns how many there were. Does not wait for bodies that arrive later, so
    that it ends while senders continue. Removes the files of ingested rows. Raises RefusedError if a body was set aside
    or cannot be recorded: its rows would be missing."""
    context.ingestion.catch_up()
    context.ledger.query(receive_holds.check, dataset.id)
    found = context.found_bodies.run()  # bodies that a restored ledger does not know
    if unrecorded := [f for f in found.left if f.dataset == dataset.name]:
        raise RefusedError(
            f"{plural(len(unrecorded), 'body', 'lies')} in the spool and cannot be recorded; the first: "
            f"{unrecorded[0].reason}",
            hint="Nothing was deleted. Let the senders run once (`strandline tick` in their lakes), and try again. "
            "`strandline spool list` names the remaining bodies.",
        )
    _check_none_aside(context, dataset)
    waited, last = context.ledger.query(batches.waiting, dataset.id)
    at_once = context.config.settings.receive.model_copy(update={"batch_wait_seconds_max": 0})
    settings = context.config.settings.model_copy(update={"receive": at_once})
    intake = Intake(replace(context, config=LakeConfig(settings, context.config.home)))
    left = waited
    why: str | None = None
    for attempt in _WITHOUT_PROGRESS.attempts():
        if not left:
            break
        done = intake.next_batch(dataset.id)
        why = next((r.reason for r in done or () if r.reason is not None), why)
        now_left, _ = context.ledger.query(batches.waiting, dataset.id, up_to=last)
        attempt.at_once = bool(done)
        if now_left < left:
            left, attempt.has_progressed = now_left, True
        elif attempt.is_last:
            raise RefusedError(
                f"rows that were received for {dataset.name} cannot be ingested: {why or 'another receiver has them'}",
                hint="Nothing was deleted. `strandline status` shows why; run this again when they are ingested.",
            )
    _check_none_aside(context, dataset)
    intake.tidy()
    return waited


def _check_none_aside(context: IntakeContext, dataset: Dataset) -> None:
    aside = context.ledger.query(ended_batches.count_set_aside, dataset.id)
    if aside:
        raise RefusedError(
            f"{dataset.name}: {plural(aside, 'body', 'was')} set aside that could not be ingested",
            hint="Nothing was deleted. Replay or discard them first: `strandline spool list` shows them.",
        )
