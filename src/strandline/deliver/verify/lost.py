"""Rows that a sink never got, and rows that cannot be accounted for any more, as `verify` reports them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.core.types import SeqRange
from strandline.deliver.verify.ranges import Fault, LaneRanges, VerifyFinding
from strandline.ledger.deliver.losses import Loss, Reason


def passed_over(losses: Sequence[Loss], partition: str) -> list[SeqRange]:
    """Ranges where the lane's watermark was moved past rows that it had not got. If rows were deleted and the watermark
    stayed, the remaining rows were delivered in the usual way."""
    return [x.range for x in losses if x.partition == partition and x.reason is Reason.DROPPED]


def forgotten(
    sink: str, losses: Sequence[Loss], layouts: Sequence[LaneRanges], published: Mapping[SeqRange, int | None]
) -> list[VerifyFinding]:
    """Ranges whose rows were deleted under a ledger that is lost since. The rows that the sink holds are compared as
    far as possible. It is known to have all of them only if as many are accounted for as were published."""
    words = (
        "rows up to here were deleted while the ledger did not know how far the sink was: whether it got all of them "
        "cannot be told any more"
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
