"""How far sinks have come by their own records, for a restored ledger that cannot know."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from strandline.core.calling_off import check_not_called_off
from strandline.core.delivery_types import NOT_PARTITIONED, SinkRecord
from strandline.core.errors import StrandlineError
from strandline.core.types import SEQ_MAX, Dataset, Lease, Seq
from strandline.deliver.context import DeliverContext
from strandline.deliver.sink_session import SinkRun
from strandline.ledger.deliver import lanes, sinks
from strandline.ledger.engine import Connection
from strandline.ledger.replicate import followers


@dataclass(frozen=True, slots=True)
class SinkInquiry:
    context: DeliverContext

    def highest_delivered(self, connection: Connection, dataset: Dataset) -> Seq | None:
        """The highest sequence number that a sink or a follower has; None if the dataset has none of them. A follower,
        and a sink that cannot be asked or may hold partitions unknown to this ledger, count as having everything: what
        is not rolled forward was never acknowledged."""
        if followers.of_dataset(connection, dataset):
            return SEQ_MAX  # a follower cannot be asked
        reached = lanes.highest_watermark(connection, dataset.id)
        for record in sinks.of_dataset(connection, dataset.id):
            found = SEQ_MAX if dataset.deliver_by else _highest_recorded(self.context, record, dataset)
            reached = found if reached is None or (found is not None and found > reached) else reached
        return reached


def _highest_recorded(context: DeliverContext, record: SinkRecord, dataset: Dataset) -> Seq | None:
    try:
        with closing(SinkRun(context, record, dataset, Lease(record.id, ""))) as run:
            held = run.sink().held([(run.address(NOT_PARTITIONED), record.planned)])[0]
    except StrandlineError:
        check_not_called_off()  # a request that was cut short says nothing about the sink
        return SEQ_MAX
    if not held.known:
        return SEQ_MAX
    highest = max([int(held.mark or 0), *(int(r.rows.hi) for r in held.ranges)])
    return Seq(highest) if highest else None
