"""What was received for a dataset is ingested now, however young it is: for whoever must reach every row of it."""

from __future__ import annotations

import time
from dataclasses import replace

from strandline.config import LakeConfig
from strandline.errors import RefusedError
from strandline.ledger import batches, ended_batches
from strandline.receive.adoption import Adoption
from strandline.receive.intake import BatchReport, Intake, IntakeBench, check_hold
from strandline.types import Dataset
from strandline.wording import plural

_WAIT_WITHOUT_PROGRESS_SECONDS = 60.0
"""For a batch that another receiver has under way, or that waits to be tried again."""


def drain(bench: IntakeBench, dataset: Dataset, *, wait_seconds: float = _WAIT_WITHOUT_PROGRESS_SECONDS) -> int:
    """How many bodies waited when it began. Those that arrive meanwhile are not waited for, so that it ends while
    senders go on; files whose rows are in are removed. Refused where a body was set aside: its rows would be missed."""
    bench.catch_up()
    check_hold(bench.ledger, dataset.id)
    found = Adoption(bench.ledger, bench.spool, bench.receipts).run()  # bodies that a restored ledger has forgotten
    if found.unclaimed:
        raise RefusedError(
            f"{plural(found.unclaimed, 'body', 'waits')} in the spool for the sender to claim its lanes again",
            hint="Nothing was deleted. Let the senders run once (`strandline tick` in their lakes), and try again.",
        )
    _check_none_aside(bench, dataset)
    with bench.ledger.read() as connection:
        waited, last = batches.waiting(connection, dataset.id)
    at_once = bench.config.settings.receive.model_copy(update={"batch_wait_seconds_max": 0})
    settings = bench.config.settings.model_copy(update={"receive": at_once})
    intake = Intake(replace(bench, config=LakeConfig(settings, bench.config.home)))
    left, deadline = waited, time.monotonic() + wait_seconds
    why: str | None = None
    while left:
        done = intake.next_batch(dataset.id)
        why = _reason(done) or why
        with bench.ledger.read() as connection:
            now_left, _ = batches.waiting(connection, dataset.id, up_to=last)
        if now_left < left:
            left, deadline = now_left, time.monotonic() + wait_seconds
        elif time.monotonic() > deadline:
            raise RefusedError(
                f"rows that were received for {dataset.name} cannot be ingested: {why or 'another receiver is at it'}",
                hint="Nothing was deleted. `strandline status` says what they wait for; run it again when they are in.",
            )
        elif not done:
            time.sleep(0.1)
    _check_none_aside(bench, dataset)
    intake.tidy()
    return waited


def _check_none_aside(bench: IntakeBench, dataset: Dataset) -> None:
    with bench.ledger.read() as connection:
        aside = ended_batches.aside_count(connection, dataset.id)
    if aside:
        raise RefusedError(
            f"{dataset.name}: {plural(aside, 'body', 'was')} set aside that could not be ingested",
            hint="Nothing was deleted. Replay or discard them first: `strandline spool list` shows them.",
        )


def _reason(done: list[BatchReport] | None) -> str | None:
    return next((r.reason for r in done or () if r.reason is not None), None)
