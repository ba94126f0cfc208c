"""Decides what happens to a batch that cannot be ingested: retry, divide, or set its one body aside (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.ledger.receive.ended_batches import FailedBatchFacts

TRIES = 3  # before any conclusion: a failure may be temporary
# if nothing else was ingested either, the disk, the catalog or the server may be at fault: parts would fail as well
TRIES_WITHOUT_PROOF = 6

Step = Literal["wait", "divide", "set_aside"]


@dataclass(frozen=True, slots=True)
class Failure:
    bodies: int  # in the batch
    times: int  # how often the batch has failed, this time included
    while_appending: bool  # it failed while its rows were read and written, not before
    unfit: bool  # the table no longer has the columns of the rows


def next_step(failure: Failure, facts: FailedBatchFacts) -> Step:
    """If other rows were ingested meanwhile, or the error names the rows, this batch is at fault, and half of it may be
    good. Without such proof only the smallest batch of the dataset is divided, so that an outage does not produce one
    batch per body. A single body is set aside only with proof."""
    if failure.times < TRIES or not failure.while_appending:
        return "wait"
    proven = failure.unfit or facts.others_got_in
    if failure.bodies == 1:
        return "set_aside" if proven else "wait"
    if proven or (failure.times >= TRIES_WITHOUT_PROOF and not facts.smaller_under_trial):
        return "divide"
    return "wait"
