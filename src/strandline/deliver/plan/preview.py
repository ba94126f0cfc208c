"""What a tick would send. Nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.core.delivery_types import ChunkState, SinkRecord, SinkState
from strandline.core.errors import StrandlineError
from strandline.core.types import Dataset, Lease, SeqRange
from strandline.deliver.context import DeliverContext
from strandline.deliver.plan.planner import load_position, plan_lanes
from strandline.deliver.sink_session import SinkRun
from strandline.ledger.deliver import intents


@dataclass(frozen=True, slots=True)
class ChunkPreview:
    range: SeqRange
    rows: int


@dataclass(frozen=True, slots=True)
class LanePreview:
    sink: str
    partition: str
    under_way: bool  # of an open intent, which comes first
    chunks: tuple[ChunkPreview, ...]

    @property
    def rows(self) -> int:
        return sum(c.rows for c in self.chunks)


@dataclass(frozen=True, slots=True)
class SinkPreview:
    name: str
    state: str
    lanes: Sequence[LanePreview]
    error: StrandlineError | None

    @property
    def rows(self) -> int:
        return sum(lane.rows for lane in self.lanes)


def preview(context: DeliverContext, record: SinkRecord, dataset: Dataset) -> list[LanePreview]:
    if record.state is not SinkState.ACTIVE:
        return []
    with context.ledger.read() as connection:
        still_open = intents.open_of(connection, record)
    found = [
        LanePreview(
            record.name,
            i.partition,
            True,
            tuple(ChunkPreview(c.rows, c.expected) for c in i.chunks if c.state is ChunkState.PLANNED),
        )
        for i in still_open
    ]
    run = SinkRun(context, record, dataset, Lease(record.id, "preview"), lambda *_: None, looks_only=True)
    try:
        standing = load_position(run)
        if standing is None:
            return found
        return found + [
            LanePreview(
                record.name,
                lane.partition,
                False,
                tuple(ChunkPreview(c.rows, c.expected) for c in lane.chunks if c.state is ChunkState.PLANNED),
            )
            for lane in plan_lanes(run, standing, standing.until).lanes
        ]
    finally:
        run.close()
