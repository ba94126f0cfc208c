"""What was received for a dataset is ingested now, however young it is: for whoever must reach every row of it."""

from __future__ import annotations

import time
from dataclasses import replace

from strandline.config import LakeConfig
from strandline.errors import RefusedError
from strandline.ledger import batches
from strandline.receive.intake import Intake, IntakeBench
from strandline.types import Dataset

_WAIT_FOR_OTHERS_SECONDS = 60.0
"""For a batch that another receiver has under way."""


def drain(bench: IntakeBench, dataset: Dataset) -> int:
    """How many bodies waited. What arrives meanwhile is not waited for."""
    waiting = _waiting(bench, dataset)
    if not waiting:
        return 0
    at_once = bench.config.settings.receive.model_copy(update={"batch_wait_seconds_max": 0})
    settings = bench.config.settings.model_copy(update={"receive": at_once})
    intake = Intake(replace(bench, config=LakeConfig(settings, bench.config.home)))
    deadline = time.monotonic() + _WAIT_FOR_OTHERS_SECONDS
    try:
        while _waiting(bench, dataset):
            intake.step()
            if time.monotonic() > deadline:
                raise RefusedError(
                    f"rows that were received for {dataset.name} cannot be ingested",
                    hint="`strandline status` says what they wait for; purge them when they are in.",
                )
            time.sleep(0.1)
    finally:
        intake.close()
    return waiting


def _waiting(bench: IntakeBench, dataset: Dataset) -> int:
    with bench.ledger.read() as connection:
        return sum(w.bodies for w in batches.report(connection) if w.dataset == dataset.id)
