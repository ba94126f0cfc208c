"""Decides what happens to a batch that cannot be ingested: retry, divide, or set its one body aside (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.core.errors import SchemaError, StrandlineError
from strandline.ledger.receive.ended_batches import FailedBatchFacts
from strandline.receive.schema_adapt import MARKER

TRIES = 3  # before a batch is divided: a failure may be temporary
# If nothing else was ingested either, the disk, the catalog or the server may be the cause: parts would fail as well.
TRIES_WITHOUT_PROOF = 6

_UNFIT_HINT = (
    "Nothing is lost: the rows are in the spool. Give the table a column of that name and type again (`strandline "
    "dataset alter`), and they are ingested; those that were set aside meanwhile, after `strandline spool replay`."
)

BatchStep = Literal["wait", "divide", "set_aside"]


@dataclass(frozen=True, slots=True)
class BatchFailure:
    bodies: int  # in the batch
    times: int  # how often the batch has failed, this time included
    while_appending: bool  # it failed while its rows were read and written, not before
    unfit: bool  # the table no longer has the columns of the rows


def next_step(failure: BatchFailure, facts: FailedBatchFacts) -> BatchStep:
    """If other rows were ingested meanwhile, or the error names the rows, this batch is the cause, and half of it may
    be good. Without such proof only the smallest batch of the dataset is divided, so that an outage does not produce
    one batch per body. A single body is set aside only with proof."""
    if failure.times < TRIES or not failure.while_appending:
        return "wait"
    proven = failure.unfit or facts.others_got_in
    if failure.bodies == 1:
        return "set_aside" if proven else "wait"
    if proven or (failure.times >= TRIES_WITHOUT_PROOF and not facts.smaller_under_trial):
        return "divide"
    return "wait"


def explained(error: StrandlineError) -> StrandlineError:
    """The SchemaError for rows that no longer fit the table, if a task raised one inside of a Spark error."""
    _, found, reason = error.message.partition(MARKER)
    return SchemaError(reason, hint=_UNFIT_HINT) if found else error
