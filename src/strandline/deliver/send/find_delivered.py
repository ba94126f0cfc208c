"""Which chunks a sink holds already: the sink is asked for a chunk of unknown outcome before anything else is done."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.core.delivery_types import Acknowledged, Chunk, ChunkId, ChunkState
from strandline.core.errors import SinkStopped
from strandline.core.types import merge_ranges
from strandline.deliver.plan.planner import read_back
from strandline.deliver.sink import Held, HeldRange, Sink, covers, overlapping
from strandline.deliver.sink_session import SinkRun


def found_there(
    run: SinkRun, sink: Sink, partition: str, chunks: Iterable[Chunk], held: Held, *, filtered: bool
) -> dict[ChunkId, Acknowledged]:
    """The chunks of one lane that the sink holds. Raises SinkStopped if it holds a chunk in part: then the range was
    cut differently, and the chunk can never land."""
    ranges = {r.rows: r for r in held.ranges}
    merged = merge_ranges(ranges)
    acks = {}
    for chunk in chunks:
        if chunk.rows in ranges:
            found = read_back(sink, run, partition, [ranges[chunk.rows]])[0]
            acks[chunk.id] = _landed(chunk, found, filtered=filtered)
        elif (held.mark is not None and chunk.rows.hi <= held.mark) or covers(merged, chunk.rows):
            acks[chunk.id] = _landed(chunk, HeldRange(chunk.rows), filtered=filtered)
        elif clash := next(overlapping(merged, chunk.rows), None):
            raise conflict(run, chunk, str(clash))
    return acks


def _landed(chunk: Chunk, found: HeldRange, *, filtered: bool) -> Acknowledged:
    count = chunk.expected if found.count is None else found.count
    withheld = max(0, chunk.expected - count) if filtered else 0
    return Acknowledged(chunk.id, ChunkState.LANDED, count, withheld, found.digest, found.size)


def conflict(run: SinkRun, chunk: Chunk, held: str) -> SinkStopped:
    return SinkStopped(
        f"{run.record.name}: chunk {chunk.rows} overlaps what the destination holds: {held}",
        hint=f"`strandline sink recover {run.record.name}` plans anew around what is there.",
    )
