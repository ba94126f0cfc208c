"""Rows that a sink never got: lost ones, foreign ones, and rows that cannot be accounted for any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.core.types import SeqRange
from strandline.deliver.sink_session import SinkRun
from strandline.deliver.verify.ranges import Fault, LaneRanges, VerifyFinding
from strandline.ledger.deliver.losses import Reason, RecordedLoss
from strandline.read import foreign_rows as counting


def passed_over(losses: Sequence[RecordedLoss], partition: str) -> list[SeqRange]:
    """Ranges where the lane's watermark was moved past rows that it had not got. If rows were deleted and the watermark
    stayed, the remaining rows were delivered in the usual way."""
    return [x.range for x in losses if x.partition == partition and x.reason is Reason.DROPPED]


def forgotten(
    sink: str, losses: Sequence[RecordedLoss], layouts: Sequence[LaneRanges], published: Mapping[SeqRange, int | None]
) -> list[VerifyFinding]:
    """Ranges whose rows were deleted or left out under a ledger that did not know the sink's progress. The sink
    certainly got all of them only if as many are accounted for as were published."""
    words = (
        "rows up to here were deleted or left out while the ledger did not know how far the sink was: whether it got "
        "all of them is not known any more"
    )
    return [
        VerifyFinding(Fault.UNPROVABLE, sink, loss.partition, loss.range, f"numbers {loss.range}", words)
        for loss in losses
        if loss.reason is Reason.FORGOTTEN and not _accounted_for(loss.range, layouts, published[loss.range])
    ]


def _accounted_for(rows: SeqRange, layouts: Sequence[LaneRanges], published: int | None) -> bool:
    inside = [r.chunk for x in layouts for r in x.chunks if rows.lo <= r.chunk.rows.lo and r.chunk.rows.hi <= rows.hi]
    aside = sum(1 for x in layouts for n in x.set_aside if n in rows)
    return published is not None and sum((c.count or 0) + (c.withheld or 0) for c in inside) + aside >= published


def foreign_rows(run: SinkRun) -> list[VerifyFinding]:
    """Foreign rows are no fault of the sink, which never gets them. A sequence number on two rows is a fault: nobody
    can tell which of them the sink has or should get."""
    context, dataset = run.context, run.dataset
    view = context.tables.settled.view(dataset.name)
    counts = counting.count(context.config, context.ledger, dataset, view, context.lake)
    found: list[VerifyFinding] = []
    if counts is None or counts.twice is None:
        return [_note(run, "it is not known whether rows of it are foreign")]
    if counts.twice:
        detail = f"it is on two rows of {dataset.name}; rows that share a number with another: {counts.twice:,}"
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
