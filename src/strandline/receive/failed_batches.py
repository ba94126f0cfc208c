"""What becomes of a batch that cannot be ingested: it waits, it is divided, or its one body is set aside (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.ledger.receive.ended_batches import Standing

TRIES = 3
"""Before anything is concluded: a failure may pass."""
TRIES_WITHOUT_PROOF = 6
"""Where nothing else came in either, it may well be the disk, the catalog or the server: parts would only be many."""

Step = Literal["wait", "divide", "set_aside"]


@dataclass(frozen=True, slots=True)
class Failure:
    bodies: int
    """Of the batch."""
    times: int
    """That the batch has failed, with this one."""
    at_the_door: bool
    """While its rows were read and written; not before, when nobody had looked at them."""
    unfit: bool
    """The table has not the columns, any more, that the rows have."""


def next_step(failure: Failure, standing: Standing) -> Step:
    """Other rows came in meanwhile, or the error names the rows: then it is this batch's fault, and half of it may be
    good. Without such proof only the smallest batch of the dataset is divided, so that an outage does not make as many
    batches as there are bodies. One body alone is set aside only with proof."""
    if failure.times < TRIES or not failure.at_the_door:
        return "wait"
    proven = failure.unfit or standing.others_got_in
    if failure.bodies == 1:
        return "set_aside" if proven else "wait"
    if proven or (failure.times >= TRIES_WITHOUT_PROOF and not standing.smaller_under_trial):
        return "divide"
    return "wait"
