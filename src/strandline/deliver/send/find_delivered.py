"""Which chunks a sink holds already: the sink is asked for a chunk of unknown outcome before anything else is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandline.core.delivery_types import Acknowledged, Chunk, ChunkId, ChunkState, Intent
from strandline.core.errors import SinkStopped
from strandline.core.types import merge_ranges
from strandline.deliver.plan.chunking import not_held
from strandline.deliver.plan.older_generations import check_foundations
from strandline.deliver.plan.planner import ask_from, check_last, read_back
from strandline.deliver.sink import Held, HeldRange, Sink, covers, overlapping
from strandline.deliver.sink_options import parse_common
from strandline.deliver.sink_session import SinkRun
from strandline.ledger.deliver import intents, lanes


def find_delivered(run: SinkRun, group: Sequence[Intent]) -> dict[ChunkId, Acknowledged]:
    """Chunks of unknown outcome that the sink holds. Raises SinkStopped if it lacks rows that it acknowledged."""
    sink = run.sink(group[0].options)
    with run.context.ledger.read() as connection:
        # raises if a lane's state cannot be read
        lanes.list_lanes(connection, run.record, lake=run.context.lake, dataset=run.dataset.uuid)
        landed = intents.last_landed(connection, run.record)
    asked = [(run.address(i.partition), ask_from(landed.get(i.lane, ()), i.after)) for i in group]
    filtered = parse_common(group[0].options).where is not None
    acks: dict[ChunkId, Acknowledged] = {}
    check_foundations(run, [i.partition for i in group])
    for intent, held in zip(group, sink.held(asked), strict=True):
        check_last(run, intent.partition, landed.get(intent.lane, ()), held)
        _check_landed(run, intent, held)
        planned = [c for c in intent.chunks if c.state is ChunkState.PLANNED]
        acks |= delivered_chunks(run, sink, intent.partition, planned, held, filtered=filtered)
    return acks


def _check_landed(run: SinkRun, intent: Intent, held: Held) -> None:
    """Raises SinkStopped if chunks that this intent landed are gone: the sink may have been restored meanwhile."""
    before_now = [c.rows for c in intent.chunks if c.state is ChunkState.LANDED and (c.count is None or c.count > 0)]
    if gone := not_held(before_now, held):
        raise SinkStopped(
            f"{run.record.name}: its destination no longer has {gone[0]}, which it acknowledged; it was restored from "
            "a backup, emptied, or is another one",
            hint=f"`strandline sink recover {run.record.name} --resend` sends it again, in a new generation.",
        )


def delivered_chunks(
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
        hint=f"`strandline sink recover {run.record.name}` plans again around what the destination has.",
    )
