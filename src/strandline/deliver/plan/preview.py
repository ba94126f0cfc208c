"""What a tick would send. Nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from strandline.core.delivery_types import Chunk, ChunkPlan, ChunkState, Intent, LanePlan, SinkRecord, SinkState
from strandline.core.errors import StrandlineError
from strandline.core.types import Dataset, Lease
from strandline.deliver.context import DeliverContext
from strandline.deliver.plan.planner import load_position, plan_lanes
from strandline.deliver.sink_session import SinkRun
from strandline.ledger.deliver import intents


@dataclass(frozen=True, slots=True)
class LanePreview:
    sink: str
    partition: str
    under_way: bool  # of an open intent, which comes first
    chunks: tuple[Chunk | ChunkPlan, ...]

    @property
    def rows(self) -> int:
        return sum(c.expected for c in self.chunks)


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
    found = [_preview(record, i, under_way=True) for i in context.ledger.query(intents.open_of, record)]
    with closing(SinkRun(context, record, dataset, Lease(record.id, "preview"), is_preview=True)) as run:
        position = load_position(run)
        if position is not None:
            planned = plan_lanes(run, position, position.until).lanes
            found += (_preview(record, lane, under_way=False) for lane in planned)
    return found


def _preview(record: SinkRecord, plan: Intent | LanePlan, *, under_way: bool) -> LanePreview:
    chunks = tuple(c for c in plan.chunks if c.state is ChunkState.PLANNED)
    return LanePreview(record.name, plan.partition, under_way, chunks)
