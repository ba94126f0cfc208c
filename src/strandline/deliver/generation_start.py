"""Where a generation of a sink began, by the ledger. Rows at or below that point are not its to deliver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.core.delivery_types import Lane, LaneId, SinkRecord
from strandline.core.errors import TokenError
from strandline.core.read_token import decode
from strandline.core.types import DatasetId, Seq
from strandline.ledger.deliver import intents, lanes, sinks
from strandline.ledger.engine import Connection


@dataclass(frozen=True, slots=True)
class Beginning:
    """The sink's start in a generation, and the partitions that start elsewhere."""

    start: Seq | None
    # per partition: the row after which it starts, and what it builds on
    lanes: Mapping[str, tuple[Seq | None, Seq | None]]
    skipped: Seq | None = None  # rows up to it that the destination lacks are never sent: a person chose that


def lane_began(lane: Lane, start: Seq | None, first: Mapping[LaneId, int]) -> int:
    """The sequence number up to which this generation does not deliver in this lane. The sink's start is for partitions
    that it had not met: in a generation that sends rows again, known lanes start where the destination was."""
    if lane.id in first:
        return min(int(start or 0), first[lane.id])
    return min(int(start or 0), int(lane.mark or 0)) if watermark_of_token(lane) == (lane.mark, True) else 0


def watermark_of_token(lane: Lane) -> tuple[Seq | None, bool]:
    """The watermark in the lane's continuation token, and whether the token can be read."""
    try:
        return decode(lane.continuation).after, True
    except TokenError:
        return None, False


def find_beginning(connection: Connection, dataset: DatasetId, instance: str, generation: int) -> Beginning | None:
    """The beginning by the record of a removed sink; None if this ledger never had the sink in that generation."""
    known = [s for s, removed in sinks.list_with_removed(connection, dataset) if removed and s.instance == instance]
    record = next((s for s in reversed(known) if s.generation == generation), None)
    return None if record is None else _beginning(connection, record)


def _beginning(connection: Connection, record: SinkRecord) -> Beginning:
    first = intents.first_starts(connection, record)
    elsewhere: dict[str, tuple[Seq | None, Seq | None]] = {}
    for lane in lanes.unchecked(connection, record):
        number = lane_began(lane, record.start, first)
        if number < int(record.start or 0) or lane.builds_on is not None:
            elsewhere[lane.partition] = (Seq(number) if number else None, lane.builds_on)
    return Beginning(record.start, elsewhere)
