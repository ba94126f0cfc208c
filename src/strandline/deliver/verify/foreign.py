"""The foreign rows of a dataset, as `verify` reports them."""

from __future__ import annotations

from strandline.deliver.sink_session import SinkRun
from strandline.deliver.verify.ranges import Fault, VerifyFinding
from strandline.read import foreign_rows as counting


def foreign_rows(run: SinkRun) -> list[VerifyFinding]:
    """Foreign rows are no fault of the sink, which never gets them. A sequence number on two rows is a fault: nobody
    can tell which of them the sink has or should get."""
    context, dataset = run.context, run.dataset
    counts = counting.count(context.config, context.ledger, dataset, context.tables().view(dataset.name), context.lake)
    found: list[VerifyFinding] = []
    if counts is None or counts.twice is None:
        return [_note(run, "it is not known whether rows of it are foreign")]
    if counts.twice:
        detail = f"it stands on two rows of {dataset.name}; rows that share a number with another: {counts.twice:,}"
        found.append(
            VerifyFinding(
                Fault.DUPLICATE_ROW, run.record.name, "", None, f"sequence number {counts.twice_first}", detail
            )
        )
    if counts.foreign > counts.twice:
        found.append(_note(run, f"foreign rows, which no sink gets: {counts.foreign - counts.twice:,}"))
    return found


def _note(run: SinkRun, detail: str) -> VerifyFinding:
    return VerifyFinding(Fault.NOTE, run.record.name, "", None, run.dataset.name, detail)
