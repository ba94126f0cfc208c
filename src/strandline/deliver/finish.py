"""An open intent is finished with exactly its bounds, chunks and options, however long ago it was stored.

Durable, in this order: the chunks at the sink, what became of them in the ledger, the mark at the sink, and then, in
one transaction, the lane's mark and the end of the intent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strandline import failpoints
from strandline.deliver.bench import Settled, settled
from strandline.deliver.build import Nothing, Shipment, Shipped, Twice, cargo_of
from strandline.deliver.direct import ship_either_way
from strandline.deliver.options import parse_common
from strandline.deliver.plan import not_held
from strandline.deliver.planning import ask_from, before, check_last, prepare, read_back
from strandline.deliver.run import SinkRun
from strandline.deliver.sink import Conflict, Held, HeldRange, Landed, Refused, TryLater, Unknown, covers, overlapping
from strandline.delivery import Acknowledged, Chunk, ChunkState, Intent
from strandline.errors import FailedError, LeaseLost, SinkStopped
from strandline.ledger import intents as intent_records
from strandline.ledger import lanes
from strandline.types import merge_ranges


@dataclass
class Finished:
    rows: int = 0
    withheld: int = 0
    chunks: int = 0
    intents: int = 0
    troubles: list[str] = field(default_factory=list)
    wait_seconds: float | None = None
    """The longest that the sink asked for."""

    def add(self, other: Finished) -> None:
        self.rows += other.rows
        self.withheld += other.withheld
        self.chunks += other.chunks
        self.intents += other.intents
        self.troubles += other.troubles
        if other.wait_seconds is not None:
            self.wait_seconds = max(self.wait_seconds or 0.0, other.wait_seconds)


def finish(run: SinkRun, todo: Sequence[Intent], *, fresh: bool) -> Finished:
    """`fresh`: stored by this very run, which asked the sink just before."""
    report = Finished()
    by_options: dict[tuple[tuple[str, str], ...], list[Intent]] = {}
    for intent in todo:
        by_options.setdefault(tuple(sorted(intent.options.items())), []).append(intent)
    for group in by_options.values():
        known = {} if fresh else _already_there(run, group)
        _finish_alike(run, group, known, report)
    return report


def _already_there(run: SinkRun, group: Sequence[Intent]) -> dict[int, Acknowledged]:
    """A chunk whose outcome is not known is asked for before it is sent again."""
    sink = run.sink(group[0].options)
    with run.bench.ledger.read() as connection:
        lanes.every(connection, run.record, lake=run.bench.lake, table_uuid=run.dataset.table_uuid)  # readable at all
        landed = intent_records.last_landed(connection, run.record)
    asked = [(run.address(i.partition), ask_from(landed.get(i.lane, ()), i.after)) for i in group]
    filtered = parse_common(group[0].options).where is not None
    acks: dict[int, Acknowledged] = {}
    for intent, held in zip(group, sink.held(asked), strict=True):
        check_last(run, intent.partition, landed.get(intent.lane, ()), held)
        _check_landed(run, intent, held)
        ranges = {r.rows: r for r in held.ranges}
        merged = merge_ranges(ranges)
        for chunk in _planned(intent):
            if chunk.rows in ranges:
                found = read_back(sink, run, intent.partition, [ranges[chunk.rows]])[0]
                acks[chunk.id] = _landed(chunk, found, filtered=filtered)
            elif (held.mark is not None and chunk.rows.hi <= held.mark) or covers(merged, chunk.rows):
                acks[chunk.id] = _landed(chunk, HeldRange(chunk.rows), filtered=filtered)
            elif clash := next(overlapping(merged, chunk.rows), None):
                raise _conflict(run, chunk, str(clash))
    if acks:
        _acknowledge(run, list(acks.values()))
    return acks


def _check_landed(run: SinkRun, intent: Intent, held: Held) -> None:
    """What this intent landed before must still be there: the sink may have been restored in the middle of it."""
    before_now = [c.rows for c in intent.chunks if c.state is ChunkState.LANDED and (c.count is None or c.count > 0)]
    if gone := not_held(before_now, held):
        raise SinkStopped(
            f"{run.record.name}: its destination no longer has {gone[0]}, which it acknowledged; it was restored from "
            "a backup, emptied, or is another one",
            hint=f"`strandline sink recover {run.record.name}` plans anew around what is there.",
        )


def _landed(chunk: Chunk, found: HeldRange, *, filtered: bool) -> Acknowledged:
    count = chunk.expected if found.count is None else found.count
    withheld = max(0, chunk.expected - count) if filtered else 0
    return Acknowledged(chunk.id, ChunkState.LANDED, count, withheld, found.digest, found.size)


def _conflict(run: SinkRun, chunk: Chunk, held: str) -> SinkStopped:
    return SinkStopped(
        f"{run.record.name}: chunk {chunk.rows} overlaps what the destination holds: {held}",
        hint=f"`strandline sink recover {run.record.name}` plans anew around what is there.",
    )


def _planned(intent: Intent) -> Iterator[Chunk]:
    return (c for c in intent.chunks if c.state is ChunkState.PLANNED)


def _finish_alike(run: SinkRun, group: Sequence[Intent], known: Mapping[int, Acknowledged], report: Finished) -> None:
    """Intents that were stored with the same options: their chunks share jobs."""
    counter = itertools.count()
    todo: list[tuple[Shipment, Chunk, Intent]] = []
    for intent in group:
        for chunk in _planned(intent):
            if chunk.id not in known:
                shipment = Shipment(next(counter), run.address(intent.partition), chunk.rows, chunk.expected)
                todo.append((shipment, chunk, intent))
    total = sum(c.expected for _, c, _ in todo)
    done: dict[int, Acknowledged] = dict(known)
    dealt = 0
    run.progress(run.record.name, 0, total)
    for wave in _waves(todo, run.bench.settings.job_rows_max):
        if run.stopping.is_set():  # the rest is promised, and whoever comes next keeps the promise
            break
        acks = _ship(run, wave, report)
        if acks:
            _acknowledge(run, acks)
        done |= {a.chunk: a for a in acks}
        dealt += sum(c.expected for _, c, _ in wave)
        run.progress(run.record.name, dealt, total)
        # Lanes that have all of their chunks need not wait for the others.
        _close(run, [i for i in group if _complete(i, done)], done, report)
        group = [i for i in group if not _complete(i, done)]
    _close(run, [i for i in group if _complete(i, done)], done, report)


def _complete(intent: Intent, done: Mapping[int, Acknowledged]) -> bool:
    return all(c.state is not ChunkState.PLANNED or c.id in done for c in intent.chunks)


def _waves(
    todo: Sequence[tuple[Shipment, Chunk, Intent]], rows_max: int
) -> Iterator[list[tuple[Shipment, Chunk, Intent]]]:
    wave: list[tuple[Shipment, Chunk, Intent]] = []
    for item in todo:
        if wave and sum(c.expected for _, c, _ in wave) + item[1].expected > rows_max:
            yield wave
            wave = []
        wave.append(item)
    if wave:
        yield wave


def _ship(run: SinkRun, wave: Sequence[tuple[Shipment, Chunk, Intent]], report: Finished) -> list[Acknowledged]:
    options = wave[0][2].options
    shipments = [s for s, _, _ in wave]
    after, until = before(min(s.rows.lo for s in shipments)), max(s.rows.hi for s in shipments)
    source = run.source if run.source is not None and run.source.holds(after, until) else None
    if source is None:
        source = settled(run.bench, run.dataset, after, until)
    shipped = {s.index: s for s in _send_all(run, source, shipments, options, report)}
    acks = []
    for shipment, chunk, _ in wave:
        ack = _outcome(run, chunk, shipped[shipment.index], report) if shipment.index in shipped else None
        if ack is not None:
            acks.append(ack)
    return acks


def _send_all(
    run: SinkRun, source: Settled, shipments: Sequence[Shipment], options: Mapping[str, str], report: Finished
) -> list[Shipped]:
    """In one job. Where that fails, lane by lane: a row that cannot be built must not hold back other partitions."""
    try:
        return _send(run, source, shipments, options)
    except FailedError as e:
        lanes_ = {s.address.partition for s in shipments}
        if len(lanes_) == 1:
            report.troubles.append(e.message)
            return []
    done: list[Shipped] = []
    for lane in sorted(lanes_):
        done += _send_all(run, source, [s for s in shipments if s.address.partition == lane], options, report)
    return done


def _send(run: SinkRun, source: Settled, shipments: Sequence[Shipment], options: Mapping[str, str]) -> list[Shipped]:
    fields = prepare(run, source, options)
    sink = run.sink(options)
    cargo = cargo_of(sink.form, fields, parse_common(options))
    sender = sink.sender(run.pass_token)
    return ship_either_way(run.bench, source, shipments, cargo, sender)


def _outcome(run: SinkRun, chunk: Chunk, shipped: Shipped, report: Finished) -> Acknowledged | None:
    match shipped.outcome:
        case Landed(count, digest, size, _):
            return Acknowledged(chunk.id, ChunkState.LANDED, count, shipped.withheld, digest, size)
        case Nothing():
            return Acknowledged(chunk.id, ChunkState.EMPTY, 0, shipped.withheld, None, None)
        case Conflict(held):
            raise _conflict(run, chunk, ", ".join(map(str, held)))
        case Twice(number):
            report.troubles.append(
                f"number {number} stands on two rows of {run.dataset.name}: someone copied rows together with their "
                f"numbers; chunk {chunk.rows} is held until one of them is gone"
            )
        case Refused(why):
            report.troubles.append(f"chunk {chunk.rows} was refused: {why}")
        case TryLater(why, seconds):
            report.troubles.append(why)
            if seconds is not None:
                report.wait_seconds = max(report.wait_seconds or 0.0, seconds)
        case Unknown(why):
            report.troubles.append(f"whether chunk {chunk.rows} landed is not known yet: {why}")
    return None


def _acknowledge(run: SinkRun, acks: Sequence[Acknowledged]) -> None:
    failpoints.hit("deliver.before_acknowledge")
    if not intent_records.acknowledge(run.bench.ledger, run.lease, acks):
        raise LeaseLost(f"{run.record.name}: another deliverer has taken over")
    failpoints.hit("deliver.after_acknowledge")


def _close(run: SinkRun, complete: Sequence[Intent], done: Mapping[int, Acknowledged], report: Finished) -> None:
    if not complete:
        return
    # A task that Spark runs twice may still be at it: from here on it can make nothing visible, so that a consumer
    # who takes a chunk away once the mark has passed it does not meet it again.
    run.fence()
    sink = run.sink(complete[0].options)
    sink.mark([(run.address(i.partition), i.until) for i in complete])
    failpoints.hit("deliver.after_mark")
    if not intent_records.close(run.bench.ledger, run.lease, run.record, complete, token=run.token):
        raise LeaseLost(f"{run.record.name}: another deliverer has taken over")
    failpoints.hit("deliver.after_close")
    acks = [done[c.id] for i in complete for c in i.chunks if c.id in done]
    report.rows += sum(a.count for a in acks)
    report.withheld += sum(a.withheld for a in acks)
    report.chunks += sum(1 for a in acks if a.state is ChunkState.LANDED)
    report.intents += len(complete)
