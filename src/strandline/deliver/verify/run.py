"""`verify`: asks the ledger first, then the sink, then the lake, and compares the three range by range.

The executors read objects and rows, as they would send them; the driver gets one result per range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from strandline.core.calling_off import check_not_called_off
from strandline.core.delivery_types import Intent, Lane, SinkRecord
from strandline.core.errors import RefusedError, StorageError, StrandlineError
from strandline.core.text.wording import plural
from strandline.core.types import Dataset, Lease, Seq, SeqRange, seq_or_none
from strandline.deliver.context import DeliverContext, settled
from strandline.deliver.plan.older_generations import compare_older
from strandline.deliver.send.digests import same_bytes
from strandline.deliver.send.rejection import REPLAY_PARTITION
from strandline.deliver.sink import Address, Held, Inspected, Inspector, Provable, Sink
from strandline.deliver.sink_session import SinkRun
from strandline.deliver.verify.compare import LakeRows, LakeSide, LaneProof, prove
from strandline.deliver.verify.ranges import Fault, LaneRanges, OptionsKey, Present, VerifyFinding, lay_out, options_key
from strandline.deliver.verify.rebuild import Rebuilding, WantedChunk
from strandline.deliver.verify.replayed_rows import Replays, prove_replays
from strandline.deliver.verify.single_rows import KnowsNumbers, NumberComparison, in_rows, unsent_rows
from strandline.deliver.verify.undelivered import foreign_rows, forgotten, passed_over
from strandline.deliver.verify.verdict import Proved, SinkVerdict, VerifyProgress, VerifyReport, add_up
from strandline.iceberg.spark.java_errors import explaining
from strandline.ledger.deliver import intents, lanes, losses, quarantine
from strandline.ledger.deliver.losses import Reason, RecordedLoss
from strandline.ledger.deliver.quarantine import NOT_DELIVERED, QuarantineState
from strandline.ledger.maintain import floors

RANGES_AT_ONCE_MAX = 2000  # read back by one job
_TASKS_PER_CORE = 4


def verify(
    context: DeliverContext,
    chosen: Sequence[tuple[SinkRecord, Dataset]],
    *,
    taken_is_fine: bool,
    progress: VerifyProgress,
) -> VerifyReport:
    """A sink that cannot be read does not keep the others from being checked."""
    verdicts = []
    for record, dataset in chosen:
        try:
            with closing(SinkRun(context, record, dataset, Lease(record.id, "verify"))) as run:
                verdicts.append(_Verification(run, taken_is_fine, progress).verdict())
        except StrandlineError as e:
            check_not_called_off()  # a cancelled job says nothing about the sink
            words = e.message if e.hint is None else f"{e.message} ({e.hint})"
            unreadable = VerifyFinding(Fault.UNREADABLE, record.name, "", None, record.destination, words)
            verdicts.append(SinkVerdict(record.name, record.kind, 0, findings=(unreadable,)))
    return VerifyReport(tuple(verdicts))


@dataclass
class _Verification:
    run: SinkRun
    taken_is_fine: bool
    progress: VerifyProgress
    history: dict[str, list[Intent]] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    losses: list[RecordedLoss] = field(default_factory=list)
    # of lanes that the ledger does not know or that could not be laid out
    extra: list[VerifyFinding] = field(default_factory=list)

    def verdict(self) -> SinkVerdict:
        self.extra += foreign_rows(self.run)
        known = self._ledger_side()
        replays = self._replays()
        layouts = self._sink_side(known, replays)
        self.extra += compare_older(self.run, known)
        inspected = self._inspect(layouts, replays)
        self._drop_what_is_new(layouts)
        proofs = self._lake_side(layouts, inspected)
        chunks = {p: [c for i in intents_ for c in i.chunks] for p, intents_ in self.history.items()}
        self.extra += prove_replays(
            self.run.record.name,
            replays,
            self.held,
            chunks,
            inspected[REPLAY_PARTITION],
            taken_is_fine=self.taken_is_fine and self.run.sink().stores_watermarks,
        )
        findings = [*self.extra, *(f for p in proofs for f in p.findings)]
        marks = [lane.mark for lane in known]
        record = self.run.record
        outside = Proved(unprovable=sum(f.kind is Fault.UNPROVABLE for f in self.extra))
        return SinkVerdict(
            record.name,
            record.kind,
            len(known),
            **add_up([*proofs, outside]),
            quarantined=replays.count(*NOT_DELIVERED),
            replayed=replays.count(QuarantineState.REPLAYED),
            discarded=replays.count(QuarantineState.DISCARDED),
            lost=sum(x.rows or 0 for x in self.losses),
            start=seq_or_none(min((x.floor for x in layouts), default=record.start) or None),
            watermark=None if not marks or None in marks else min(m for m in marks if m is not None),
            findings=tuple(findings),
        )

    def _say(self, what: str, done: int, total: int) -> None:
        self.progress(self.run.record.name, what, done, total)

    def _ledger_side(self) -> list[Lane]:
        run = self.run
        self._say("asking the ledger", 0, 0)
        with run.context.ledger.read() as connection:
            known = lanes.list_lanes(connection, run.record, lake=run.context.lake, dataset=run.dataset.uuid)
            self.history = {lane.partition: list(intents.history(connection, lane.id)) for lane in known}
            self.losses = losses.of_sink(connection, run.record)
        return known

    def _drop_what_is_new(self, layouts: Sequence[LaneRanges]) -> None:
        """Drop ranges that the sink got after the ledger was asked: the ledger has promised them by now."""
        odd = [layout for layout in layouts if layout.beyond]
        if not odd:
            return
        with self.run.context.ledger.read() as connection:
            for layout in odd:
                promised = {c.rows for i in intents.history(connection, layout.lane.id) for c in i.chunks}
                layout.beyond = [p for p in layout.beyond if p.held.rows not in promised]

    def _replays(self) -> Replays:
        """The quarantined rows, and what the sink holds as replays. The ledger is asked first, as for the others."""
        record = self.run.record
        found = self.run.context.ledger.query(quarantine.list_quarantined, record)
        rows = [q for q in found if q.generation == record.generation]
        if not self.run.sink().stores_watermarks:
            return Replays(tuple(rows), None)
        held = self._held_by_one(self.run.sink(), (self.run.address(REPLAY_PARTITION), None))
        return Replays(tuple(rows), held or Held(None, (), known=False))

    def _sink_side(self, known: Sequence[Lane], replays: Replays) -> list[LaneRanges]:
        self._say("asking the sink", 0, 0)
        layouts = []
        for lane, held in zip(known, self._held(known), strict=True):
            if held is not None and not held.known:
                words = "the destination cannot be asked what it has, so nothing can be proved"
                self._add(Fault.UNREADABLE, lane.partition, None, self.run.record.destination, words)
            elif held is not None:
                self.held[lane.partition] = held
                layouts.append(
                    lay_out(
                        self.run.record.name,
                        lane,
                        self.run.record.start,
                        self.history[lane.partition],
                        held,
                        self._namer(lane.partition),
                        set_aside=replays.set_aside(lane.partition),
                        replayed=replays.in_its_place(lane.partition),
                        lost=passed_over(self.losses, lane.partition),
                        taken_is_fine=self.taken_is_fine,
                    )
                )
        return layouts

    def _add(self, kind: Fault, partition: str, rows: SeqRange | None, what: str, detail: str) -> None:
        self.extra.append(VerifyFinding(kind, self.run.record.name, partition, rows, what, detail))

    def _held(self, known: Sequence[Lane]) -> list[Held | None]:
        sink = self.run.sink()
        asked: list[tuple[Address, Seq | None]] = [(self.run.address(lane.partition), None) for lane in known]
        try:
            return list(sink.held(asked))
        except RefusedError:
            return [self._held_by_one(sink, one) for one in asked]

    def _held_by_one(self, sink: Sink, asked: tuple[Address, Seq | None]) -> Held | None:
        try:
            return sink.held([asked])[0]
        except RefusedError as e:  # a sink raises this if two objects hold the same rows
            self._add(Fault.OVERLAP, asked[0].partition, None, self.run.record.destination, e.message)
            return None

    def _namer(self, partition: str) -> Callable[[SeqRange, OptionsKey | None], str]:
        address = self.run.address(partition)

        def name(rows: SeqRange, options: OptionsKey | None) -> str:
            sink = self.run.sink(None if options is None else dict(options))
            return sink.name_of(address, rows) if isinstance(sink, Provable) else str(rows)

        return name

    def _inspect(self, layouts: Sequence[LaneRanges], replays: Replays) -> dict[str, dict[SeqRange, Inspected]]:
        """What the sink holds, by partition and range. A range that cannot be read becomes a finding instead."""
        pairs = [(self.run.address(x.lane.partition), p.held.rows) for x in layouts for p in x.present]
        pairs += ((self.run.address(REPLAY_PARTITION), rows) for rows in replays.ranges)
        found: dict[str, dict[SeqRange, Inspected]] = {x.lane.partition: {} for x in layouts}
        found[REPLAY_PARTITION] = {}
        if not pairs:
            return found
        task = _Inspection(self.run.sink().inspector())
        for at in range(0, len(pairs), RANGES_AT_ONCE_MAX):
            self._say("reading the sink", at, len(pairs))
            for partition, rows, seen, why in self._inspect_some(task, pairs[at : at + RANGES_AT_ONCE_MAX]):
                if seen is not None:
                    found[partition][rows] = seen
                else:
                    name = self._namer(partition)(rows, None)
                    self._add(Fault.UNREADABLE, partition, rows, name, why or "it cannot be read")
        self._say("reading the sink", len(pairs), len(pairs))
        return found

    def _inspect_some(self, task: _Inspection, pairs: Sequence[tuple[Address, SeqRange]]) -> list[_ReadRange]:
        if getattr(task.inspector, "asks_only", False):
            return list(task.run(pairs))
        spark = self.run.context.tables.settled.spark.sparkContext
        slices = min(len(pairs), spark.defaultParallelism * _TASKS_PER_CORE)
        with explaining("what the sink holds cannot be read"):
            return spark.parallelize(pairs, slices).mapPartitions(task.run).collect()  # one result per range

    def _lake_side(
        self, layouts: Sequence[LaneRanges], inspected: Mapping[str, Mapping[SeqRange, Inspected]]
    ) -> list[LaneProof]:
        record = self.run.record
        # a watermark that was read from the sink itself may be above what is planned
        marks = [int(x.lane.mark or 0) for x in layouts]
        highest = max([int(record.planned or 0), *marks, *(int(r.chunk.rows.hi) for x in layouts for r in x.chunks)])
        if highest == 0:
            return [prove(x, inspected[x.lane.partition], LakeSide({}, False)) for x in layouts]
        source = settled(self.run.context, self.run.dataset, None, Seq(highest))
        with self.run.context.ledger.read() as connection:  # after the table: the floor rises before rows go
            floor = max(floors.get(connection, record.dataset) or 0, source.view.floor)
            purged = tuple(losses.purged(connection, record.dataset))
        wanted = [
            WantedChunk(x.lane.partition, r.chunk.rows, r.chunk.expected, r.options) for x in layouts for r in x.chunks
        ]
        unrecorded = [(p, self._item(x, p)) for x in layouts for p in x.present if p.record is None]
        # known by the watermark alone: no chunk is in its place
        wanted += (item for p, item in unrecorded if p.options is None)
        # They overlap chunks which were cut differently, and need a pass of their own.
        apart = [item for p, item in unrecorded if p.options is not None]
        done = 0

        def note(count: int) -> None:
            nonlocal done
            done += count
            self._say("building it again from the lake", done, max(done, len(wanted) + len(apart)))

        note(0)
        rebuilding = Rebuilding(self.run, source, note)
        rebuilt = rebuilding.rebuild(wanted) | rebuilding.rebuild(apart)
        self._note_what_cannot_be_built(wanted, rebuilding.unfit)
        rebuilt |= self._explained(rebuilding, source.view.schemas > 1, layouts, inspected, rebuilt)
        view = source.view
        changed = view.deleted_from or not view.chain_reaches(None)
        by_lane: dict[str, dict[SeqRange, LakeRows]] = {x.lane.partition: {} for x in layouts}
        for item, rows in rebuilt.items():
            by_lane[item.partition][item.rows] = rows
        proofs = []
        for layout in layouts:
            partition = layout.lane.partition
            side = LakeSide(by_lane[partition], changed, view.schemas > 1, floor, purged)
            proofs.append(prove(layout, inspected[partition], side))
        query, dataset = self.run.context.ledger.query, self.run.dataset.id
        unknown = [x.range for x in self.losses if x.reason is Reason.FORGOTTEN]
        published = {rows: query(floors.rows_published, dataset, rows) for rows in unknown}
        self.extra += forgotten(record.name, self.losses, layouts, published)
        self._say("searching for rows that were never sent", 0, 0)
        self.extra += unsent_rows(source.df, self.run.record, layouts, by_lane, self.history)
        self._name_rows(rebuilding, layouts, proofs, inspected)
        return proofs

    def _explained(
        self,
        rebuilding: Rebuilding,
        reshaped: bool,
        layouts: Sequence[LaneRanges],
        inspected: Mapping[str, Mapping[SeqRange, Inspected]],
        rebuilt: Mapping[WantedChunk, LakeRows],
    ) -> dict[WantedChunk, LakeRows]:
        """Chunks whose bytes differ although the rows are the same: another version of a library wrote them, or the
        table had another schema. They get the digest that was delivered."""
        differing: dict[WantedChunk, str] = {}
        for layout in layouts:
            seen = inspected[layout.lane.partition]
            for p in layout.present:
                item = self._item(layout, p)
                there = rebuilt.get(item)
                digest = _digest(p, seen.get(p.held.rows))
                known = p.held.count if p.record is None else p.record.chunk.count
                fewer = there is not None and known is not None and there.count < known  # no bytes would explain that
                if there is not None and there.digest and digest and not same_bytes(there.digest, digest) and not fewer:
                    differing[item] = digest
        if not differing:
            return {}
        same = rebuilding.same_content(list(differing))
        if reshaped and (left := {w: d for w, d in differing.items() if w not in same}):
            same |= rebuilding.rebuild_as_before(left)
        return {w: replace(rebuilt[w], digest=differing[w]) for w in same}

    def _item(self, layout: LaneRanges, p: Present) -> WantedChunk:
        partition, rows = layout.lane.partition, p.held.rows
        if p.record is not None:
            return WantedChunk(partition, rows, p.record.chunk.expected, p.record.options)
        options = p.options or options_key(self.run.record.options)
        return WantedChunk(partition, rows, p.held.count or len(rows), options)

    def _note_what_cannot_be_built(self, wanted: Sequence[WantedChunk], unfit: Mapping[OptionsKey, str]) -> None:
        for options, why in unfit.items():
            alike = [w for w in wanted if w.options == options]
            what = first_of_chunks(len(alike), self._namer(alike[0].partition)(alike[0].rows, options))
            detail = f"only counts and digests of the ledger are compared, not the lake's: {why}"
            self._add(Fault.NOTE, alike[0].partition, alike[0].rows, what, detail)

    def _name_rows(
        self,
        rebuilding: Rebuilding,
        layouts: Sequence[LaneRanges],
        proofs: Sequence[LaneProof],
        inspected: Mapping[str, Mapping[SeqRange, Inspected]],
    ) -> None:
        """If the sink can say which sequence numbers it has, name the wrong rows and not only their range."""
        inspector = self.run.sink().inspector()
        wrong = [
            self._item(x, p)
            for x in layouts
            for p in x.present
            if (seen := inspected[x.lane.partition].get(p.held.rows)) is not None and seen.problem is not None
        ]
        if wrong and isinstance(inspector, KnowsNumbers):
            differences = rebuilding.ask_about_numbers(wrong, NumberComparison(inspector))
            for proof in proofs:
                proof.findings[:] = in_rows(proof.findings, differences)
        inspector.close()


def first_of_chunks(count: int, first: str) -> str:
    return first if count == 1 else f"{plural(count, 'chunk')}, the first of them {first}"


def _digest(p: Present, seen: Inspected | None) -> str | None:
    """The digest that the lake's rows should give; None if something else is wrong already."""
    if seen is None or seen.problem is not None:
        return None
    there = seen.digest or p.held.digest
    said = None if p.record is None else p.record.chunk.digest
    if not said or not there:
        return there
    return said if same_bytes(said, there) else None


_ReadRange = tuple[
    str, SeqRange, Inspected | None, str | None
]  # partition, range, what is there, or why it is not known


@dataclass(frozen=True)
class _Inspection:
    """Runs on the executors."""

    inspector: Inspector

    def run(self, pairs: Iterable[tuple[Address, SeqRange]]) -> Iterator[_ReadRange]:
        try:
            for address, rows in pairs:
                try:
                    yield address.partition, rows, self.inspector.inspect(address, rows), None
                except StorageError as e:
                    yield address.partition, rows, None, e.message
        finally:
            self.inspector.close()
