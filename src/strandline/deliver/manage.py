"""What people do with sinks: add, change, pause, reset, recover and remove them. Every decision is audited."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from strandline.continuation import check, decode
from strandline.deliver.bench import DeliverBench
from strandline.deliver.kinds import check_options, find_kind
from strandline.deliver.options import COMMON, own_options, parse_common
from strandline.deliver.plan import lacking, not_held
from strandline.deliver.run import SinkRun, open_sink
from strandline.deliver.sink import Claim, Claimed, Held, Sink
from strandline.deliver.sinks.names import overlaps, place_of
from strandline.delivery import ChunkState, Lane, Lease, SinkId, SinkRecord, SinkState
from strandline.errors import RefusedError, SchemaError, UsageError
from strandline.ledger import audit, blocks, intents, lanes, sinks
from strandline.ledger.engine import Connection, utc_now
from strandline.tables.schema import Column
from strandline.types import PARTITION_COLUMN, SEQ_COLUMN, Dataset, History, Seq, merge_ranges

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def add_sink(
    bench: DeliverBench,
    dataset: Dataset,
    columns: Sequence[Column],
    *,
    name: str,
    kind: str,
    options: Mapping[str, str],
    from_now: bool,
) -> SinkRecord:
    """Checked against the destination itself before anything is recorded; the destination says whose it is first, so
    that a ledger that is lost right after finds its sink again."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a sink",
            hint="Letters, digits, `_`, `.` and `-`, beginning with one of the first two.",
        )
    with bench.ledger.read() as connection:
        if sinks.find(connection, name) is not None:
            raise RefusedError(f"there is a sink named {name} already", hint="`strandline sink update` changes one.")
    draft = _draft(bench, dataset, name, kind, options, columns)
    sink = open_sink(bench, draft, dataset, options)
    try:
        draft = replace(draft, destination=sink.destination)
        _check_place(bench, draft)
        found = sink.claimed()
        if found is not None:
            draft = _continue(draft, dataset, found, bench.lake)
        sink.prepare(delivered_columns(columns, options))
        claimed = sink.claim(_claim(bench, draft, dataset), draft.generation)
        if claimed.claim.instance != draft.instance:
            raise RefusedError(f"somebody else claimed {draft.destination} at the same time", hint="Look who it was.")
    finally:
        sink.close()
    with bench.ledger.write() as connection:
        added = sinks.add(
            connection,
            instance=draft.instance,
            name=name,
            kind=kind,
            dataset=dataset.id,
            options=options,
            destination=draft.destination,
            start=_start(connection, dataset, from_now=from_now),
            generation=draft.generation,
        )
        audit.record(
            connection, "sink_added", sink=name, kind=kind, dataset=dataset.name, destination=draft.destination,
            start=added.start, generation=added.generation,
        )  # fmt: skip
    return added


def _draft(
    bench: DeliverBench,
    dataset: Dataset,
    name: str,
    kind: str,
    options: Mapping[str, str],
    columns: Sequence[Column],
) -> SinkRecord:
    check_all_options(kind, options)
    delivered_columns(columns, options)
    instance = uuid4().hex
    now = utc_now()
    state = SinkState.ACTIVE
    return SinkRecord(
        SinkId(0), instance, name, kind, dataset.id, 1, dict(options), "", None, None, state, None, 0, None, now
    )


def check_all_options(kind: str, options: Mapping[str, str]) -> None:
    known = find_kind(kind)
    unknown = set(options) - {o.name for o in (*COMMON, *known.options)}
    if unknown:
        names = ", ".join(o.name for o in (*known.options, *COMMON))
        raise UsageError(f"a sink of kind {kind} has no option {min(unknown)!r}", hint=f"Options: {names}.")
    check_options(known, own_options(options))
    parse_common(options)


def delivered_columns(columns: Sequence[Column], options: Mapping[str, str]) -> list[Column]:
    """What the sink gets, the number always among it."""
    by_name = {c.name: c for c in columns}
    chosen = parse_common(options).columns
    if chosen is None:
        return [by_name[SEQ_COLUMN], *(c for c in columns if c.name not in (SEQ_COLUMN, PARTITION_COLUMN))]
    if unknown := [c for c in chosen if c not in by_name]:
        raise SchemaError(f"there is no column {unknown[0]!r}", hint=f"Columns: {', '.join(by_name)}.")
    picked = [by_name[c] for c in chosen]
    return picked if SEQ_COLUMN in chosen else [by_name[SEQ_COLUMN], *picked]


def _check_place(bench: DeliverBench, draft: SinkRecord) -> None:
    place = draft.destination
    if overlaps(place, place_of(bench.config.warehouse_url, bench.config.settings.warehouse.endpoint)):
        raise RefusedError(
            f"{place} lies inside the warehouse, or around it", hint="A sink's destination must be a place of its own."
        )
    with bench.ledger.read() as connection:
        for other in sinks.every(connection):
            if overlaps(other.destination, place):
                raise RefusedError(
                    f"sink {other.name} delivers to {other.destination} already",
                    hint="Two sinks must not share a destination: choose another place, or remove that sink.",
                )


def _continue(draft: SinkRecord, dataset: Dataset, found: Claimed, lake: str) -> SinkRecord:
    """A destination that was ours before, under a ledger that is lost or in a sink that was removed, goes on where it
    stands: what it holds is never sent again."""
    claim = found.claim
    if claim.lake != lake or claim.dataset != dataset.name or claim.table_uuid != dataset.table_uuid:
        raise RefusedError(
            f"{draft.destination} belongs to dataset {claim.dataset} of lake {claim.lake}"
            + (", another table of the same name" if claim.lake == lake and claim.dataset == dataset.name else ""),
            hint="Choose another place, or empty this one if nobody needs it.",
        )
    return replace(draft, instance=claim.instance, generation=found.generation)


def _claim(bench: DeliverBench, record: SinkRecord, dataset: Dataset) -> Claim:
    return Claim(bench.lake, record.instance, dataset.name, dataset.table_uuid)


def _start(connection: Connection, dataset: Dataset, *, from_now: bool) -> Seq | None:
    if from_now:
        return blocks.sealed(connection, dataset.id)
    if dataset.history is History.SKIP:
        return blocks.highest_adopted(connection, dataset.id)
    return None


def update_sink(
    bench: DeliverBench,
    dataset: Dataset,
    columns: Sequence[Column],
    name: str,
    options: Mapping[str, str],
    unset: Sequence[str] = (),
) -> SinkRecord:
    """For the next intent; an open one keeps the options that it was stored with."""
    with bench.ledger.read() as connection:
        record = sinks.get(connection, name)
    if missing := [o for o in unset if o not in record.options]:
        raise UsageError(f"sink {name} has no option {missing[0]!r} set")
    merged = {k: v for k, v in (dict(record.options) | dict(options)).items() if k not in unset}
    check_all_options(record.kind, merged)
    wanted = delivered_columns(columns, merged)
    sink = open_sink(bench, record, dataset, merged)
    try:
        if sink.destination != record.destination:
            raise RefusedError(
                f"sink {name} delivers to {record.destination}; that cannot be changed",
                hint="Add another sink for the other place, and remove this one.",
            )
        sink.prepare(wanted)
    finally:
        sink.close()
    with bench.ledger.write() as connection:
        sinks.set_options(connection, record.id, merged, record.destination)
        audit.record(connection, "sink_updated", sink=name, options=merged)
        return sinks.get(connection, name)


@contextmanager
def alone(bench: DeliverBench, record: SinkRecord) -> Iterator[Lease]:
    """The sink's lease, so that nobody delivers meanwhile."""
    lease = sinks.take_lease(bench.ledger, record.id, seconds=bench.settings.lease_seconds)
    if lease is None:
        raise RefusedError(
            f"somebody delivers to {record.name} right now",
            hint=f"Try again in a moment, or `strandline sink pause {record.name}` first.",
        )
    try:
        yield lease
    finally:
        sinks.release(bench.ledger, lease)


def reset_sink(bench: DeliverBench, dataset: Dataset, name: str, to: str | None) -> SinkRecord:
    """A new generation, with marks and a place of its own: from the beginning, or behind a token."""
    with bench.ledger.read() as connection:
        record = sinks.get(connection, name)
        sealed = blocks.sealed(connection, dataset.id)
    start = None
    if to is not None:
        start = check(decode(to), lake=bench.lake, table=dataset.table_uuid, name=dataset.name, sealed=sealed)
    with alone(bench, record):
        sink = open_sink(bench, record, dataset, record.options)
        try:
            found = sink.claimed()
        finally:
            sink.close()
        generation = max(record.generation, found.generation if found else 0) + 1
        with bench.ledger.write() as connection:
            fresh = sinks.new_generation(connection, record.id, generation, start)
            dropped = intents.abandon_open(connection, fresh)
            audit.record(
                connection, "sink_reset", sink=name, generation=generation, start=start, intents_dropped=dropped
            )
    return fresh


def remove_sink(bench: DeliverBench, name: str) -> SinkRecord:
    """What was delivered stays where it is; the sink no longer holds anything back."""
    with bench.ledger.read() as connection:
        record = sinks.get(connection, name)
    with alone(bench, record), bench.ledger.write() as connection:
        sinks.remove(connection, record.id)
        audit.record(connection, "sink_removed", sink=name, destination=record.destination)
    return record


# Recovering.


@dataclass(frozen=True, slots=True)
class SinkRecovered:
    name: str
    generation: int
    repaired: tuple[str, ...]
    """Partitions whose mark was read from the sink's own side."""
    lost: tuple[tuple[str, str], ...]
    """Partitions and the last range of each that the sink acknowledged and no longer has."""
    lost_rows: int
    """In all ranges that it acknowledged and no longer has: sent again, or given up."""
    intents_dropped: int


def recover_sink(bench: DeliverBench, dataset: Dataset, name: str, *, resend: bool, accept_loss: bool) -> SinkRecovered:
    """Read from the sink itself how far it is, and go on from there. What it lost is sent again in a new generation, or
    given up, as a person says; without a word about it nothing is changed."""
    if resend and accept_loss:
        raise UsageError("either --resend or --accept-loss")
    with bench.ledger.read() as connection:
        record = sinks.get(connection, name)
    with alone(bench, record) as lease:
        run = SinkRun(bench, record, dataset, lease, lambda *_: None)
        try:
            return _recover(run, resend=resend, accept_loss=accept_loss)
        finally:
            run.close()


def _recover(run: SinkRun, *, resend: bool, accept_loss: bool) -> SinkRecovered:
    bench, sink = run.bench, run.sink()
    run.fence()
    found = sink.claimed()
    if found is not None and found.claim.instance != run.record.instance:
        raise RefusedError(f"{run.record.destination} belongs to another sink ({found.claim.instance})")
    if found is not None and found.generation > run.record.generation:
        with bench.ledger.write() as connection:  # what that generation holds already is subtracted by its first plan
            run.record = sinks.new_generation(connection, run.record.id, found.generation, run.record.start)
            intents.abandon_open(connection, run.record)
            audit.record(connection, "sink_recovered", sink=run.record.name, generation=found.generation)
        return SinkRecovered(run.record.name, found.generation, (), (), 0, 0)
    with bench.ledger.read() as connection:
        known = lanes.unchecked(connection, run.record)
        landed = intents.last_landed(connection, run.record)
    held = sink.held([(run.address(lane.partition), None) for lane in known])
    lost = [
        (lane, h)
        for lane, h in zip(known, held, strict=True)
        if lacking(landed.get(lane.id, ()), h, keeps_marks=sink.keeps_marks)
    ]
    if lost and not (resend or accept_loss):
        ranges = ", ".join(str(lane.last) for lane, _ in lost[:5])
        raise RefusedError(
            f"{run.record.name}: the destination no longer has {ranges}, which it acknowledged",
            hint="--resend sends what it lacks again, in a new generation; --accept-loss goes on without it.",
        )
    if lost and resend:
        return _resend(run, known, held, lost)
    return _repair(run, sink, known, held, lost)


def _reached(lane: Lane, held: Held, start: Seq | None) -> Seq | None:
    """How far a sink's own record covers a lane without a gap, from where the sink began."""
    at = max(int(start or 0), int(held.mark or 0))
    for r in merge_ranges(h.rows for h in held.ranges):
        if r.lo <= at + 1 <= r.hi + 1:
            at = max(at, int(r.hi))
    return Seq(at) if at else None


def _repair(
    run: SinkRun, sink: Sink, known: Sequence[Lane], held: Sequence[Held], lost: Sequence[tuple[Lane, Held]]
) -> SinkRecovered:
    record, gone, lost_rows = run.record, {lane.partition for lane, _ in lost}, _lost_rows(run, lost)
    repaired = []
    with run.bench.ledger.write() as connection:
        dropped = intents.drop_open(connection, record)
        for lane, h in zip(known, held, strict=True):
            reached = _reached(lane, h, record.start)
            mark = lane.mark if reached is None or (lane.mark is not None and lane.mark > reached) else reached
            if lane.partition in gone:
                lanes.forget_last(connection, lane)
            lanes.rebuild(connection, record, lane.partition, mark=mark, token=run.token, last=None)
            repaired.append(lane.partition)
        sinks.resume(connection, record.id)
        audit.record(
            connection, "sink_recovered", sink=record.name, partitions=len(repaired), intents_dropped=dropped,
            lost=[(lane.partition, str(lane.last)) for lane, _ in lost], lost_rows=lost_rows,
        )  # fmt: skip
    # The sink's own record must agree again: what is given up counts as delivered from now on.
    sink.mark([(run.address(lane.partition), lane.mark) for lane, _ in lost if lane.mark is not None])
    return SinkRecovered(
        record.name, record.generation, tuple(repaired), tuple((x.partition, str(x.last)) for x, _ in lost),
        lost_rows, dropped,
    )  # fmt: skip


def _lost_rows(run: SinkRun, lost: Sequence[tuple[Lane, Held]]) -> int:
    rows = 0
    with run.bench.ledger.read() as connection:
        for lane, held in lost:
            for intent in intents.history(connection, lane.id):
                landed = {c.rows: c.count or 0 for c in intent.chunks if c.state is ChunkState.LANDED}
                rows += sum(landed[r] for r in not_held(list(landed), held))
    return rows


def _resend(
    run: SinkRun, known: Sequence[Lane], held: Sequence[Held], lost: Sequence[tuple[Lane, Held]]
) -> SinkRecovered:
    """Marks never go back, so what is sent again is a new generation: each lane starts where the sink says it is."""
    record, gone, lost_rows = run.record, {lane.partition for lane, _ in lost}, _lost_rows(run, lost)
    with run.bench.ledger.write() as connection:
        fresh = sinks.new_generation(connection, record.id, record.generation + 1, record.planned)
        dropped = intents.abandon_open(connection, fresh)
        for lane, h in zip(known, held, strict=True):
            mark = _reached(lane, h, record.start) if lane.partition in gone else lane.mark
            lanes.rebuild(connection, fresh, lane.partition, mark=mark, token=run.token, last=None)
        audit.record(
            connection, "sink_recovered", sink=record.name, generation=fresh.generation, resend=True,
            lost=[(lane.partition, str(lane.last)) for lane, _ in lost], lost_rows=lost_rows,
        )  # fmt: skip
    named = tuple((x.partition, str(x.last)) for x, _ in lost)
    return SinkRecovered(record.name, fresh.generation, (), named, lost_rows, dropped)
