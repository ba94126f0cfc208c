"""Finishes open intents with exactly their bounds, options and chunks, however long ago they were stored. Only a chunk
that the sink refuses for good is split; the split is stored before its parts are sent.

The durable steps, in this order: the chunks at the sink, their outcomes in the ledger, the watermark at the sink, and
then, in one transaction, the lane's watermark and the end of the intent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strandline.core import failpoints
from strandline.core.calling_off import check_not_called_off
from strandline.core.delivery_types import Acknowledged, Chunk, ChunkId, ChunkState, Intent, IntentId
from strandline.core.errors import CalledOff, FailedError
from strandline.core.portions import portions
from strandline.core.types import before
from strandline.deliver.context import settled
from strandline.deliver.plan.planner import prepare
from strandline.deliver.send.build_parquet import ship_either_way
from strandline.deliver.send.build_spark import DuplicateNumber, Nothing, Shipment, Shipped, Unsent, cargo_of
from strandline.deliver.send.find_delivered import conflict, find_delivered
from strandline.deliver.send.patience import IN_A_ROW_MAX
from strandline.deliver.send.rejection import ChunkRefusal
from strandline.deliver.send.split_rejected import Refusing
from strandline.deliver.send.undelivered_rows import read_undelivered
from strandline.deliver.sink import Conflict, Landed, Refused, TriesRows, TryLater, Unknown, can_be_asked
from strandline.deliver.sink_options import parse_common
from strandline.deliver.sink_session import SinkRun
from strandline.ledger.deliver import intents as intent_records
from strandline.read.settled_view import SettledView

# With more chunks than this in one round, the content of a row that is refused alone comes back in the next round: a
# sink that refuses everything must not send all rows to the driver.
_CONTENTS_MAX = 1000

_ALIKE_MAX = 3


@dataclass
class Finished:
    rows: int = 0
    withheld: int = 0
    quarantined: int = 0
    chunks: int = 0
    intents: int = 0
    troubles: list[str] = field(default_factory=list)
    wait_seconds: float | None = None  # the longest that the sink asked for
    gave_up: bool = False  # A wave met nothing but trouble, or the sink asked to wait: this run sends nothing more.

    def add(self, other: Finished) -> None:
        self.rows += other.rows
        self.withheld += other.withheld
        self.quarantined += other.quarantined
        self.chunks += other.chunks
        self.intents += other.intents
        self.troubles += other.troubles
        self.gave_up |= other.gave_up
        if other.wait_seconds is not None:
            self.wait(other.wait_seconds)

    def wait(self, seconds: float) -> None:
        self.wait_seconds = max(self.wait_seconds or 0.0, seconds)


def finish(run: SinkRun, todo: Sequence[Intent], *, fresh: bool) -> Finished:
    """`fresh`: this run stored the intents and asked the sink just before."""
    report = Finished()
    by_options: dict[tuple[tuple[str, str], ...], list[Intent]] = {}
    for intent in todo:
        by_options.setdefault(tuple(sorted(intent.options.items())), []).append(intent)
    for group in by_options.values():
        if report.gave_up:
            break
        known = {} if fresh else find_delivered(run, group)
        if known:
            _acknowledge(run, list(known.values()))
        _Finishing(run, group, known, report).finish()
    return report


def _planned(intent: Intent) -> Iterator[Chunk]:
    return (c for c in intent.chunks if c.state is ChunkState.PLANNED)


@dataclass(frozen=True, slots=True)
class _Todo:
    chunk: Chunk
    intent: Intent


class _Finishing:
    """Intents that were stored with the same options: their chunks share jobs."""

    def __init__(
        self, run: SinkRun, group: Sequence[Intent], known: Mapping[ChunkId, Acknowledged], report: Finished
    ) -> None:
        self.run = run
        self.options = group[0].options
        self.report = report
        # Intents that are not closed, each with its chunks as they are stored now.
        self.left: dict[IntentId, Intent] = {i.id: i for i in group}
        self.done: dict[ChunkId, Acknowledged] = dict(known)
        self.dealt = 0
        self.refusing = Refusing(run, group, self.options)
        self.refusing.takes_others |= _any_rows(known.values())

    def finish(self) -> None:
        """Sends in rounds: what is refused in one is split or quarantined for the next."""
        todo = [_Todo(c, i) for i in self._in_turn() for c in _planned(i) if c.id not in self.done]
        total = sum(t.chunk.expected for t in todo)
        self.run.progress(self.run.record.name, 0, total)
        few = len(todo) <= _CONTENTS_MAX
        while todo and not self.report.gave_up:
            refusals = self._send_once(todo, total, brings_content=few)
            todo = self._deal_with(refusals) if refusals else []
            few = True  # at most as many as were refused within the bound
            self._close_complete()
        self._close_complete()

    def _in_turn(self) -> list[Intent]:
        """The intents, rotated: first those after the lanes in trouble, which were not tried the last time."""
        lanes_ = list(self.left.values())
        first = (self.run.record.failures * IN_A_ROW_MAX) % len(lanes_)
        return lanes_[first:] + lanes_[:first]

    def _send_once(self, todo: Sequence[_Todo], total: int, *, brings_content: bool) -> list[ChunkRefusal]:
        refusals: list[ChunkRefusal] = []
        waves = deque(portions(todo, lambda t: t.chunk.expected, self.run.context.settings.job_rows_max))
        while waves:
            wave = waves.popleft()
            if self.run.stopping.is_set():  # the rest is stored, and the next deliverer sends it
                return []
            self._offer(wave)
            try:
                sent = _Wave(self.run, wave, self.report, brings_content)
                sent.send()
                self._record(sent)
                again = self._send_doubted(sent.doubted, brings_content) if sent.doubted else None
            except CalledOff:
                return []
            later: list[_Todo] = []
            if again is not None:
                self._record(again)
                later = sent.unsent
                sent.acks += again.acks
                sent.refused += again.refused
                sent.troubled = again.troubled
            else:
                self.report.troubles += (why for _, why in sent.doubted)
            refusals += sent.refused
            in_doubt = {r.chunk.id for r in sent.refused} | {t.chunk.id for t in later}
            self.dealt += sum(t.chunk.expected for t in wave if t.chunk.id not in in_doubt)
            self.run.progress(self.run.record.name, self.dealt, total)
            # Lanes whose chunks are all done need not wait for the others.
            self._close_complete()
            if self.refusing.are_too_many(refusals):
                break  # the sink stops, so the rest is not sent
            if sent.troubled and (self.report.wait_seconds is not None or not (sent.refused or _any_rows(sent.acks))):
                self.report.gave_up = True
                break
            if later and not sent.troubled:
                waves.appendleft(later)
        return refusals

    def _record(self, sent: _Wave) -> None:
        if sent.acks:
            _acknowledge(self.run, sent.acks)
        self._settle(sent.acks)
        self.run.landed_any |= _any_rows(sent.acks)
        self.run.landed |= _any_rows(sent.acks) and not sent.troubled

    def _send_doubted(self, doubted: Sequence[tuple[_Todo, str]], brings_content: bool) -> _Wave | None:
        """Sends chunks once more that may be refused because of their rows. If the sink takes another row in between,
        a second refusal is because of the rows. None if it takes none: then it may be in trouble itself."""
        chunks = {t.chunk.id for t, _ in doubted}
        unsent = [
            (i.partition, c.rows)
            for i in self.left.values()
            for c in _planned(i)
            if c.id not in self.done and c.id not in chunks
        ]
        try:
            rows = read_undelivered(self.run, self.options, unsent)
        except FailedError as e:  # a row that cannot be built must not hold back other lanes
            check_not_called_off()
            self.report.troubles.append(e.message)
            return None
        sender = self.run.sink(self.options).sender(self.run.pass_token)
        try:
            if rows is None or not isinstance(sender, TriesRows) or not sender.takes_any(rows):
                return None
        finally:
            sender.close()
        again = _Wave(self.run, [t for t, _ in doubted], self.report, brings_content, blames_rows=True)
        again.send()
        return again

    def _offer(self, wave: Sequence[_Todo]) -> None:
        """If the sink cannot be asked, only the ledger knows which chunks may have been sent. Raises LeaseLost."""
        if can_be_asked(self.run.sink(self.options)):
            return
        failpoints.hit("offer.before_record")
        if not intent_records.offer(self.run.context.ledger, self.run.lease, [t.chunk.id for t in wave]):
            raise self.run.superseded()
        failpoints.hit("offer.after_record")

    def _settle(self, acks: Sequence[Acknowledged]) -> None:
        self.done |= {a.chunk: a for a in acks}
        self.refusing.takes_others |= _any_rows(acks)

    def _deal_with(self, refusals: Sequence[ChunkRefusal]) -> list[_Todo]:
        """The chunks to send in the next round."""
        acks = self.refusing.ask(refusals)
        if acks:
            _acknowledge(self.run, acks)
            self._settle(acks)
            refusals = [r for r in refusals if r.chunk.id not in self.done]
        dealt = self.refusing.deal_with(refusals)
        self.done |= {a.chunk: a for a in dealt.set_aside}
        self.report.quarantined += len(dealt.set_aside)
        self.dealt += sum(r.chunk.expected for r in refusals if r.chunk.id in self.done)
        todo: list[_Todo] = []
        for r in refusals:
            intent = self.left[r.intent]
            if (parts := dealt.parts.get(r.chunk.id)) is not None:
                kept = [c for c in intent.chunks if c.id != r.chunk.id]
                chunks = tuple(sorted((*kept, *parts), key=lambda c: c.rows))
                self.left[r.intent] = intent = replace(intent, chunks=chunks)
                todo += (_Todo(part, intent) for part in parts)
            elif r.chunk.id not in self.done:
                todo.append(_Todo(r.chunk, intent))
        return todo

    def _close_complete(self) -> None:
        complete = [i for i in self.left.values() if all(c.id in self.done for c in _planned(i))]
        if not complete:
            return
        run, report = self.run, self.report
        # A task that Spark runs twice may still be sending. The fence keeps it from making anything visible, so that a
        # consumer who removes a chunk below the watermark does not see it again.
        run.fence()
        run.sink(self.options).set_watermarks([(run.address(i.partition), i.until) for i in complete])
        failpoints.hit("deliver.after_mark")
        if not intent_records.close(run.context.ledger, run.lease, run.record, complete, token=run.token):
            raise run.superseded()
        failpoints.hit("deliver.after_close")
        acks = [self.done[c.id] for i in complete for c in i.chunks if c.id in self.done]
        report.rows += sum(a.count for a in acks)
        report.withheld += sum(a.withheld for a in acks)
        report.chunks += sum(1 for a in acks if a.state is ChunkState.LANDED)
        report.intents += len(complete)
        for intent in complete:
            del self.left[intent.id]


def _any_rows(acks: Iterable[Acknowledged]) -> bool:
    return any(a.state is ChunkState.LANDED and a.count > 0 for a in acks)


@dataclass
class _Wave:
    """Chunks that one job sends, and what became of them."""

    run: SinkRun
    todo: Sequence[_Todo]
    report: Finished
    brings_content: bool
    blames_rows: bool = False  # a refusal is because of the rows, not because of trouble of the sink
    acks: list[Acknowledged] = field(default_factory=list)
    refused: list[ChunkRefusal] = field(default_factory=list)
    # may be refused because of their rows, and what the sink said
    doubted: list[tuple[_Todo, str]] = field(default_factory=list)
    # given back, because the destination was in trouble with chunks before them
    unsent: list[_Todo] = field(default_factory=list)
    troubled: bool = False  # the destination was in trouble with a chunk

    def send(self) -> None:
        run = self.run
        shipments = [
            Shipment(n, run.address(t.intent.partition), t.chunk.rows, t.chunk.expected, self.brings_content)
            for n, t in enumerate(self.todo)
        ]
        after, until = before(min(s.rows.lo for s in shipments)), max(s.rows.hi for s in shipments)
        source = run.source if run.source is not None and run.source.covers(after, until) else None
        if source is None:
            source = settled(run.context, run.dataset, after, until)
        for shipped in self._send_all(source, shipments):
            self._sort(self.todo[shipped.index], shipped)

    def _send_all(self, source: SettledView, shipments: Sequence[Shipment]) -> list[Shipped]:
        """Send in one job. If it fails, send lane by lane: a row that cannot be built must not delay other partitions.
        If several lanes in a row fail with the same message, the rest waits for a retry."""
        try:
            return self._send(source, shipments)
        except FailedError as e:
            check_not_called_off()  # a cancelled job says nothing about the rows
            if (newer := self._newer(source)) is not None:
                return self._send_all(newer, shipments)
            lanes_ = {s.address.partition for s in shipments}
            if len(lanes_) == 1:
                self.report.troubles.append(e.message)
                return []
        done: list[Shipped] = []
        for lane in sorted(lanes_):
            last = self.report.troubles[-_ALIKE_MAX:]
            if self.run.stopping.is_set() or (len(last) == _ALIKE_MAX and len(set(last)) == 1):
                break
            done += self._send_all(source, [s for s in shipments if s.address.partition == lane])
        return done

    def _newer(self, source: SettledView) -> SettledView | None:
        """The rows in the newest snapshot, if the one that the plan saw is gone: anybody may compact and expire it
        before the rows are sent. The promise is about sequence numbers, which stay. Happens once per plan."""
        run, until = self.run, source.bounds.until
        if source is not run.source or until is None:
            return None
        if source.view.main in run.context.tables.settled.view(run.dataset.name).snapshots:
            return None
        run.source = None
        return settled(run.context, run.dataset, source.bounds.after, until)

    def _send(self, source: SettledView, shipments: Sequence[Shipment]) -> list[Shipped]:
        run, options = self.run, self.todo[0].intent.options
        fields = prepare(run, source, options)
        sink = run.sink(options)
        cargo = cargo_of(sink.form, fields, parse_common(options))
        sender = sink.sender(run.pass_token)
        if self.blames_rows and isinstance(sender, TriesRows):
            sender = sender.blaming_rows()
        with run.tasks_max() as tasks_max, run.stops_when_called_off():
            return ship_either_way(run.context, source, shipments, cargo, sender, tasks_max)

    def _sort(self, item: _Todo, shipped: Shipped) -> None:
        chunk, report = item.chunk, self.report
        self.troubled |= isinstance(shipped.outcome, TryLater | Unknown | Unsent)
        match shipped.outcome:
            case Landed(count, digest, size, _):
                self.acks.append(Acknowledged(chunk.id, ChunkState.LANDED, count, shipped.withheld, digest, size))
            case Nothing():
                self.acks.append(Acknowledged(chunk.id, ChunkState.EMPTY, 0, shipped.withheld, None, None))
            case Conflict(held):
                raise conflict(self.run, chunk, ", ".join(map(str, held)))
            case DuplicateNumber(number):
                report.troubles.append(
                    f"the sequence number {number} is on two rows of {self.run.dataset.name}: someone copied rows "
                    f"together with their numbers; chunk {chunk.rows} is held until one of them is gone"
                )
            case Refused(why):
                if shipped.refused is None:
                    raise ValueError(f"chunk {chunk.rows} was refused, and its task does not say what it held")
                self.refused.append(ChunkRefusal(chunk, item.intent.id, why, shipped.withheld, shipped.refused))
            case TryLater(why, _, True):
                self.doubted.append((item, why))
            case TryLater(why, seconds):
                report.troubles.append(why)
                if seconds is not None:
                    report.wait(seconds)
            case Unknown(why):
                report.troubles.append(f"whether chunk {chunk.rows} landed is not known yet: {why}")
            case Unsent():
                self.unsent.append(item)


def _acknowledge(run: SinkRun, acks: Sequence[Acknowledged]) -> None:
    failpoints.hit("deliver.before_acknowledge")
    if not intent_records.acknowledge(run.context.ledger, run.lease, acks):
        raise run.superseded()
    failpoints.hit("deliver.after_acknowledge")
