"""The read model of whole sinks, without their partitions, for metrics: its cost does not depend on partitions.

It reads only the ledger. What is unknown is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from strandline.core.delivery_types import Lane, SinkId, SinkRecord, SinkState
from strandline.core.errors import WatermarkUnreadable
from strandline.ledger.deliver import delivery_report, lanes, sinks
from strandline.ledger.deliver.lanes import EqualLanes
from strandline.ledger.engine import Connection, utc_now
from strandline.ledger.maintain import retention_holds

if TYPE_CHECKING:
    from strandline.core.types import Dataset


class BySink:
    """The ledger's records of each sink, or of `only` one."""

    def __init__(self, connection: Connection, known: Sequence[Dataset], only: SinkId | None = None) -> None:
        self.datasets = {d.id: d for d in known}
        self.dataset_names = delivery_report.dataset_names(connection, only)
        self.holds = retention_holds.by_dataset(connection)
        self.losses = delivery_report.losses(connection, only)
        self.backlogs = delivery_report.backlogs(connection, only)


class WholeSink:
    """A sink without its partitions: what is the same for all of them, and the sums."""

    def __init__(
        self,
        found: BySink,
        sink: SinkRecord,
        marked: Sequence[Lane | EqualLanes],
        lake: str,
        now: datetime,
        *,
        promised: int,
        quarantined: int,
    ) -> None:
        """`promised` rows are in open intents and have not landed; `quarantined` ones the sink refused."""
        self.sink, self.now, self.state = sink, now, state_of(sink)
        dataset = found.datasets.get(sink.dataset)
        self.dataset_name = dataset.name if dataset else found.dataset_names[sink.id]
        self.is_readable, self.problem = _checked(marked, sink, dataset, lake)
        held = () if dataset is None else found.holds.get(dataset.id, ())
        hold = next((h for h in held if h.sink == sink.id), None)
        self.held_rows: int | None = 0 if hold is None else hold.rows
        self.held_since: datetime | None = None if hold is None else hold.since
        self.lost = found.losses.get(sink.id, delivery_report.NOTHING_LOST)
        backlog = found.backlogs[sink.id]
        self.quarantined_rows, self.unplanned_rows = quarantined, backlog.unplanned_rows
        self.exported_rows = sum(m.exported for m in marked) if self.is_readable else None
        self.counted_lag_rows = backlog.unplanned_rows + promised if backlog.is_counted else None
        # If watermarks contradict themselves, it is unknown what the sink lacks.
        self.lag_rows = self.counted_lag_rows if self.is_readable else None
        self.lag_seconds = (0.0 if backlog.since is None else self.seconds(backlog.since)) if self.is_readable else None

    def seconds(self, since: datetime) -> float:
        return max(0.0, round((self.now - since).total_seconds(), 3))


def _checked(
    marked: Sequence[Lane | EqualLanes], sink: SinkRecord, dataset: Dataset | None, lake: str
) -> tuple[bool, str | None]:
    """Whether the watermarks can be used, and what is wrong."""
    if dataset is None:
        return True, "its dataset was dropped"
    try:
        lanes.check(marked, sink, lake=lake, dataset=dataset.uuid)
    except WatermarkUnreadable as e:
        return False, e.message
    return True, None


def state_of(sink: SinkRecord) -> str:
    waits = sink.state is SinkState.ACTIVE and (sink.failures > 0 or sink.retry_at is not None)
    return "waiting" if waits else sink.state.value


def read_whole_sinks(
    connection: Connection, lake: str, known: Sequence[Dataset], *, now: datetime | None = None
) -> list[WholeSink]:
    """All sinks, in a fixed number of queries. `connection` must be one of `read_consistent`; `known` are all datasets
    that were not dropped."""
    chosen, moment = sinks.list_sinks(connection), now or utc_now()
    if not chosen:
        return []
    found = BySink(connection, known)
    equal, promised = lanes.unchecked_by_watermark(connection), delivery_report.rows_left(connection)
    refused = delivery_report.quarantined_by_sink(connection)
    return [
        WholeSink(
            found, s, equal.get(s.id, []), lake, moment,
            promised=promised.get(s.id, 0), quarantined=refused.get(s.id, 0),
        )
        for s in chosen
    ]  # fmt: skip
