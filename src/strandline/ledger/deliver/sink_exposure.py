"""What sinks were promised, as far as the ledger knows: in all generations, and removed sinks too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import SinkRecord
from strandline.core.types import DatasetId, Seq, seq_or_none
from strandline.ledger.deliver import sinks
from strandline.ledger.schema.core import intent, lane, sink


@dataclass(frozen=True, slots=True)
class SentSpan:
    """The first and last sequence numbers promised under one `where` condition; other rows may lie between."""

    where: str | None
    after: Seq | None
    until: Seq


@dataclass(frozen=True, slots=True)
class LanePast:
    partition: str
    mark: Seq | None
    spans: tuple[SentSpan, ...]


@dataclass(frozen=True, slots=True)
class SinkGeneration:
    """One generation of a sink, whose destination may hold rows of the dataset."""

    record: SinkRecord
    generation: int
    removed: bool
    lanes: tuple[LanePast, ...]

    @property
    def is_current(self) -> bool:
        return not self.removed and self.generation == self.record.generation


def of_dataset(connection: sa.Connection, dataset: DatasetId) -> list[SinkGeneration]:
    """All generations of the dataset's sinks, by name. The current generation of a live sink is included even if it has
    no lane."""
    # Intents are many and options few, so the database aggregates.
    rows = connection.execute(
        sa.select(
            *lane.c["sink_id", "generation", "partition", "mark"],
            intent.c.options,
            sa.func.min(sa.func.coalesce(intent.c.after, 0)).label("after"),
            sa.func.max(intent.c.until).label("until"),
        )
        .join_from(sink, lane, lane.c.sink_id == sink.c.id)
        .join(intent, intent.c.lane_id == lane.c.id, isouter=True)
        .where(sink.c.dataset_id == dataset)
        .group_by(lane.c.sink_id, lane.c.generation, lane.c.id, lane.c.partition, lane.c.mark, intent.c.options)
    ).all()
    by_lane: dict[tuple[int, int], dict[str, list[Any]]] = {}
    for r in rows:
        by_lane.setdefault((r.sink_id, r.generation), {}).setdefault(r.partition, []).append(r)
    result = []
    for record, removed in sinks.list_with_removed(connection, dataset):
        generations = sorted(g for id, g in by_lane if id == record.id)
        if not removed and record.generation not in generations:
            generations.append(record.generation)
        for generation in generations:
            lanes = by_lane.get((record.id, generation), {})
            result.append(SinkGeneration(record, generation, removed, tuple(_past(p, lanes[p]) for p in sorted(lanes))))
    return result


def _past(partition: str, rows: Sequence[Any]) -> LanePast:
    bounds: dict[str | None, tuple[int, int]] = {}
    for r in rows:
        if r.until is not None:
            where = json.loads(r.options).get("where") or None
            lo, hi = bounds.get(where, (r.after, r.until))
            bounds[where] = (min(lo, r.after), max(hi, r.until))
    spans = (SentSpan(w, seq_or_none(lo or None), Seq(hi)) for w, (lo, hi) in bounds.items())
    return LanePast(partition, seq_or_none(rows[0].mark), tuple(sorted(spans, key=lambda s: (s.until, s.where or ""))))
