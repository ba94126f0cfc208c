"""Ingests at once everything that was received for a dataset, for operations that need every row of it."""

from __future__ import annotations

import time
from dataclasses import replace

from strandline.core.errors import RefusedError
from strandline.core.settings import LakeConfig
from strandline.core.types import Dataset
from strandline.core.wording import plural
from strandline.ledger.receive import batches, ended_batches, receive_holds
from strandline.receive.intake import Intake, IntakeContext

_WAIT_WITHOUT_PROGRESS_SECONDS = 60.0  # for a batch that another receiver has under way, or that waits for its retry


def drain(context: IntakeContext, dataset: Dataset) -> int:
    """Returns how many bodies waited at the start. It does not wait for bodies that arrive later, so that it ends while
    senders go on. It removes the files of ingested rows. Raises RefusedError if a body was set aside or cannot be
    recorded: its rows would be missing."""
    context.ingestion.catch_up()
    context.ledger.query(receive_holds.check, dataset.id)
    found = context.found_bodies.run()  # bodies that a restored ledger has forgotten
    if unrecorded := [f for f in found.left if f.dataset == dataset.name]:
        raise RefusedError(
            f"{plural(len(unrecorded), 'body', 'lies')} in the spool and cannot be recorded; the first: "
            f"{unrecorded[0].reason}",
            hint="Nothing was deleted. Let the senders run once (`strandline tick` in their lakes), and try again. "
            "`strandline spool list` names what is left.",
        )
    _check_none_aside(context, dataset)
    waited, last = context.ledger.query(batches.waiting, dataset.id)
    at_once = context.config.settings.receive.model_copy(update={"batch_wait_seconds_max": 0})
    settings = context.config.settings.model_copy(update={"receive": at_once})
    intake = Intake(replace(context, config=LakeConfig(settings, context.config.home)))
    left, deadline = waited, time.monotonic() + _WAIT_WITHOUT_PROGRESS_SECONDS
    why: str | None = None
    while left:
        done = intake.next_batch(dataset.id)
        why = next((r.reason for r in done or () if r.reason is not None), why)
        now_left, _ = context.ledger.query(batches.waiting, dataset.id, up_to=last)
        if now_left < left:
            left, deadline = now_left, time.monotonic() + _WAIT_WITHOUT_PROGRESS_SECONDS
        elif time.monotonic() > deadline:
            raise RefusedError(
                f"rows that were received for {dataset.name} cannot be ingested: {why or 'another receiver is at it'}",
                hint="Nothing was deleted. `strandline status` says what they wait for; run it again when they are in.",
            )
        elif not done:
            time.sleep(0.1)
    _check_none_aside(context, dataset)
    intake.tidy()
    return waited


def _check_none_aside(context: IntakeContext, dataset: Dataset) -> None:
    aside = context.ledger.query(ended_batches.aside_count, dataset.id)
    if aside:
        raise RefusedError(
            f"{dataset.name}: {plural(aside, 'body', 'was')} set aside that could not be ingested",
            hint="Nothing was deleted. Replay or discard them first: `strandline spool list` shows them.",
        )
