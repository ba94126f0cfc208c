"""Plans a sink's next chunks: scans, cuts around what the sink holds, and stores the plan before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import StructField

from strandline.core import failpoints
from strandline.core.delivery_types import NOT_PARTITIONED, ChunkState, Intent, Lane, LaneId, LanePlan
from strandline.core.errors import SchemaError, SinkStopped
from strandline.core.types import Seq, SeqRange, before
from strandline.deliver.context import settled
from strandline.deliver.plan import size_scan_spark
from strandline.deliver.plan.chunking import (
    FoundAtSink,
    RowPortion,
    cut,
    cut_around,
    found_beyond,
    lacking,
    promise_limit,
    ranges_to_pin,
    straddles,
    with_pinned_cut,
)
from strandline.deliver.plan.older_generations import check_foundations
from strandline.deliver.plan.size_scan_parquet import scan_files
from strandline.deliver.send.data_files import plain_files
from strandline.deliver.sink import Cut, Held, HeldRange, Pinning, Sink, is_numbered
from strandline.deliver.sink_options import parse_common
from strandline.deliver.sink_session import SinkRun
from strandline.iceberg.schema.columns import from_iceberg
from strandline.ledger.deliver import intents, lanes, quarantine
from strandline.ledger.ingest import blocks, published_blocks
from strandline.ledger.replicate import cuts, followers
from strandline.read.settled_view import SettledView


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """Where a sink's lanes are, and how far its next plan goes."""

    lanes: Mapping[str, Lane]
    landed: Mapping[LaneId, Sequence[SeqRange]]  # what the sink acknowledged last, and must still hold
    bounds: size_scan_spark.LaneBounds
    sealed: Seq
    until: Seq
    # per lane, the sequence numbers beyond its watermark that are or were in quarantine
    set_aside: Mapping[str, frozenset[int]]

    def mark(self, partition: str) -> Seq | None:
        known = self.lanes.get(partition)
        return self.bounds.default if known is None else known.mark


def load_position(run: SinkRun) -> SinkPosition | None:
    """None if all sealed rows are planned and no lane is behind."""
    record = run.record
    with run.context.ledger.read() as connection:
        known = {
            lane.partition: lane
            for lane in lanes.list_lanes(connection, record, lake=run.context.lake, dataset=run.dataset.uuid)
        }
        landed = intents.last_landed(connection, record)
        still_open = frozenset(i.partition for i in intents.open_of(connection, record))
        refused = [q for q in quarantine.list_quarantined(connection, record) if q.generation == record.generation]
        sealed = blocks.sealed(connection, run.dataset.id)
        if sealed is None:
            return None
        marks = [m for m in (record.planned, *(lane.mark for lane in known.values())) if m is not None]
        _check_left_out(run, cuts.left_out_term(connection, run.dataset.id, marks))
        waits = followers.sealed_by_all(connection) if run.context.settings.wait_for == "all" else {}
        promised = promise_limit(sealed, record.planned, waits.get(run.dataset.id, sealed))
        if promised is None:
            return None
        until = published_blocks.end_of_rows(
            connection,
            run.dataset.id,
            after=record.planned,
            sealed=promised,
            rows_max=run.context.settings.plan_rows_max,
        )
    exceptions = {p: lane.mark for p, lane in known.items() if lane.mark != record.planned and p not in still_open}
    if not run.dataset.deliver_by and NOT_PARTITIONED in still_open:
        return None
    if until <= (record.planned or 0) and not exceptions:
        return None
    bounds = size_scan_spark.LaneBounds(record.planned, exceptions, still_open)
    beyond = {
        p: frozenset(int(q.seq) for q in refused if q.lane == x.id and q.seq > (x.mark or 0)) for p, x in known.items()
    }
    return SinkPosition(known, landed, bounds, sealed, until, beyond)


def store_next(run: SinkRun) -> list[Intent] | None:
    """Store the next plan; None if there is nothing to plan. Raises LeaseLost."""
    position = load_position(run)
    if position is None:
        return None
    with run.stops_when_called_off():
        planned = _with_pinned_cuts(run, position, plan_lanes(run, position, position.until))
    failpoints.hit("deliver.before_plan")
    stored = intents.store_plan(
        run.context.ledger,
        run.lease,
        run.record,
        until=planned.until,
        lanes=planned.lanes,
        options=run.record.options,
        token=run.token,
        left_out=position.bounds.left_out,
        waits_upto=position.until if run.context.settings.wait_for == "all" else None,
    )
    if stored is None:
        raise run.superseded()
    failpoints.hit("deliver.after_plan")
    run.record = replace(run.record, planned=Seq(max(planned.until, run.record.planned or 0)))
    return stored


@dataclass(frozen=True, slots=True)
class Planned:
    until: Seq
    lanes: tuple[LanePlan, ...]
    held: Mapping[str, Held]  # by partition


def plan_lanes(run: SinkRun, position: SinkPosition, until: Seq) -> Planned:
    """Scan, ask the sink about lanes with new rows, cut. Raises SinkStopped if the sink holds rows above the seal."""
    while True:  # `until` rises each time, never above the seal
        source = settled(run.context, run.dataset, position.bounds.lowest, until)
        fields = prepare(run, source)
        source, portions = _scan_portions(run, source, position, until, fields)
        held = _ask_sink(run, position, sorted(portions))
        found = {p: _found_at_sink(run, position, p, h) for p, h in held.items()}
        beyond = max((f.highest for f in found.values()), default=0)
        _check_settled(run, position, beyond)
        if beyond <= until:
            run.source = source
            return Planned(until, tuple(_cut_lanes(run, position, until, source, portions, found)), held)
        until = Seq(beyond)  # a restored ledger: the sink is ahead of this plan


def _check_settled(run: SinkRun, position: SinkPosition, beyond: int) -> None:
    if beyond > position.sealed:
        raise SinkStopped(
            f"{run.record.name}: its destination holds sequence number {beyond}, and {run.dataset.name} is settled "
            f"up to {position.sealed} only",
            hint="The ledger or the catalog is an old copy, or another program delivers to that place.",
        )


def _check_left_out(run: SinkRun, term: int | None) -> None:
    if term is not None:
        raise SinkStopped(
            f"{run.record.name}: the leader of term {term} delivered to its destination, and this lake's leader was "
            "promoted by force without that one's rows: an unknown number of rows that are here may be missing there",
            hint=f"`strandline sink reset {run.record.name} --to beginning` sends everything again.",
        )


def _with_pinned_cuts(run: SinkRun, position: SinkPosition, planned: Planned) -> Planned:
    """The plan with the cut that the sink stores. A sink that cannot cancel a put keeps the first: see `Pinning`."""
    sink = run.sink()
    if not isinstance(sink, Pinning):
        return planned
    while True:
        lanes_ = [p for p in planned.lanes if any(c.state is ChunkState.PLANNED for c in p.chunks)]
        # The ledger alone moved lanes without new rows. The sink finds a pinned cut by its own watermark, so that one
        # is raised first; this also drops a cut that nobody will use again.
        ahead = {p.partition: p.after for p in lanes_ if p.after and p.after > (planned.held[p.partition].mark or 0)}
        sink.set_watermarks([(run.address(p), mark) for p, mark in ahead.items()])
        marks = {p.partition: ahead.get(p.partition, planned.held[p.partition].mark) for p in lanes_}
        asked = [
            (run.address(p.partition), marks[p.partition], Cut(p.until, ranges_to_pin(p, marks[p.partition])))
            for p in lanes_
        ]
        pinned = {p.partition: cut for p, cut in zip(lanes_, sink.pin(asked), strict=True)}
        failpoints.hit("deliver.after_pin")
        furthest = max((cut.until for cut in pinned.values()), default=planned.until)
        _check_settled(run, position, furthest)
        if furthest <= planned.until:
            pinned_lanes = (
                _with_pinned_cut(run, p, pinned.get(p.partition), marks.get(p.partition)) for p in planned.lanes
            )
            return replace(planned, lanes=tuple(pinned_lanes))
        planned = plan_lanes(run, position, furthest)


def _with_pinned_cut(run: SinkRun, plan: LanePlan, cut: Cut | None, mark: Seq | None) -> LanePlan:
    pinned = None if cut is None else with_pinned_cut(plan, cut, mark)
    if pinned is None and cut is not None:
        raise SinkStopped(
            f"{run.record.name}: its destination promised {', '.join(map(str, cut.ranges[:5]))} to another deliverer, "
            f"and the watermark is {plan.after}",
            hint=f"`strandline verify {run.record.name}` shows what is there.",
        )
    return plan if pinned is None else pinned


def _scan_portions(
    run: SinkRun, source: SettledView, position: SinkPosition, until: Seq, fields: Sequence[StructField]
) -> tuple[SettledView, dict[str, list[RowPortion]]]:
    """The portions of new rows: read directly from the files if these are enough, else through Spark. `after` is the
    watermark of the one lane, which may be above what is planned if it was read from the sink itself."""
    after = position.mark(NOT_PARTITIONED) if not run.dataset.deliver_by else position.bounds.lowest
    if not run.dataset.deliver_by and (after or 0) >= until:
        return source, {}
    files = plain_files(run.context, source, fields, after or 0, until)
    found = None if files is None else scan_files(run.context, files, fields, after or 0, until, run.options)
    if found is None:
        return replace(source, files=files), size_scan_spark.scan_portions(
            source.df, fields, position.bounds, run.options
        )
    return replace(source, files=files), ({NOT_PARTITIONED: found} if found else {})


def _cut_lanes(
    run: SinkRun,
    position: SinkPosition,
    until: Seq,
    source: SettledView,
    portions: Mapping[str, Sequence[RowPortion]],
    found: Mapping[str, FoundAtSink],
) -> list[LanePlan]:
    marks = {p: position.mark(p) for p in portions}
    around = {p: f for p, f in found.items() if not f.is_empty}
    fields = size_scan_spark.delivered_fields(
        source.df.schema, run.options.columns, is_numbered=is_numbered(run.sink())
    )
    by_segment = (
        size_scan_spark.scan_portions_around(source.df, fields, marks, around, until, run.options) if around else {}
    )
    plans = []
    for partition in sorted(portions):
        after = marks[partition]
        chunks = (
            cut_around(after, until, around[partition], by_segment.get(partition, {}), run.options)
            if partition in around
            else cut(after, until, portions[partition], run.options)
        )
        plans.append(LanePlan(partition, after, until, chunks))
    return plans


def _ask_sink(run: SinkRun, position: SinkPosition, partitions: Sequence[str]) -> dict[str, Held]:
    """What the sink holds of each lane, by its own record. Raises SinkStopped if it lacks rows that it acknowledged."""
    if not partitions:
        return {}
    lasts = {p: position.landed.get(lane.id, ()) for p, lane in position.lanes.items()}
    asked = [(run.address(p), ask_from(lasts.get(p, ()), position.mark(p))) for p in partitions]
    answers = dict(zip(partitions, run.sink().held(asked), strict=True))
    for partition, held in answers.items():
        check_last(run, partition, lasts.get(partition, ()), held)
    check_foundations(run, partitions)
    return answers


def _found_at_sink(run: SinkRun, position: SinkPosition, partition: str, held: Held) -> FoundAtSink:
    beyond = found_beyond(position.mark(partition), held)
    with run.context.ledger.read() as connection:
        _check_left_out(run, cuts.left_out_term(connection, run.dataset.id, [Seq(beyond.highest)]))
    if (bad := straddles(position.mark(partition), beyond)) is not None:
        raise SinkStopped(
            f"{run.record.name}: its destination holds {bad.rows}, with watermark {position.mark(partition)} inside",
            hint=f"`strandline verify {run.record.name}` shows what is there.",
        )
    quarantined = position.set_aside.get(partition, frozenset())
    return FoundAtSink(tuple(read_back(run.sink(), run, partition, beyond.listed)), beyond.mark, quarantined)


def ask_from(landed: Sequence[SeqRange], mark: Seq | None) -> Seq | None:
    """The sequence number to ask from, so that the answer includes what was acknowledged last."""
    return before(landed[0].lo) if landed else mark


def check_last(run: SinkRun, partition: str, landed: Sequence[SeqRange], held: Held) -> None:
    if gone := lacking(landed, held, stores_watermarks=run.sink().stores_watermarks):
        where = f" (partition {partition})" if partition else ""
        raise SinkStopped(
            f"{run.record.name}{where}: its destination no longer knows of {gone[-1]}, which it acknowledged; it was "
            "restored from a backup, emptied, or is another one",
            hint=f"`strandline sink recover {run.record.name} --resend` sends it again, in a new generation; "
            "`--accept-loss` continues without it.",
        )


def read_back(sink: Sink, run: SinkRun, partition: str, listed: Sequence[HeldRange]) -> list[HeldRange]:
    """The listed ranges with count and digest; the sink is read where its record does not have them. Raises SinkStopped
    for a range whose content is damaged: taken for delivered, its rows would never be sent."""
    if all(r.count is not None and r.digest is not None for r in listed):
        return list(listed)
    inspector = sink.inspector()
    try:
        result = []
        for r in listed:
            seen = inspector.inspect(run.address(partition), r.rows)
            if seen.problem is not None:
                raise SinkStopped(
                    f"{run.record.name}: its destination holds {r.rows}, which is damaged: {seen.problem}",
                    hint="Take the damaged content away, and its rows are sent again; "
                    f"`strandline verify {run.record.name}` shows what is there.",
                )
            result.append(HeldRange(r.rows, seen.count, seen.digest, r.size))
        return result
    finally:
        inspector.close()


def prepare(run: SinkRun, source: SettledView, options: Mapping[str, str] | None = None) -> list[StructField]:
    """Show the sink the columns that it is about to get, once per schema and run; returns them. Raises SchemaError."""
    chosen = run.options.columns if options is None else parse_common(options).columns
    columns = from_iceberg(source.view.schema["fields"])
    names = [c.name for c in columns]
    if chosen is not None and (unknown := [c for c in chosen if c not in names]):
        raise SchemaError(
            f"{run.record.name}: {run.dataset.name} has no column {unknown[0]!r}",
            hint=f"`strandline sink update {run.record.name} --option columns=…` chooses others; for what is under way,"
            f" `strandline sink recover {run.record.name}` plans it again.",
        )
    fields = size_scan_spark.delivered_fields(source.df.schema, chosen, is_numbered=is_numbered(run.sink(options)))
    key = (source.view.schema_id, chosen, tuple(sorted((options or run.record.options).items())))
    if key not in run.prepared:
        by_name = {c.name: c for c in columns}
        wanted = [by_name[f.name] for f in fields]
        if not run.is_preview:
            run.sink(options).prepare(wanted)
        run.prepared.add(key)
    return fields
