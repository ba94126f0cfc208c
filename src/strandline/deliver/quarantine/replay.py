"""Sends quarantined rows again: from the driver, one at a time, with the options that they were refused with.

A replayed row has the range of its own sequence number, in its own lane. So an earlier attempt that arrives late, from
any deliverer and under any ledger, is a repeat. A sink that keeps watermarks would treat that range as delivered long
ago: there, and only there, the row goes to a lane for replays, and late attempts are fenced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum

from strandline.core import failpoints
from strandline.core.calling_off import check_not_called_off
from strandline.core.delivery_types import SinkRecord
from strandline.core.errors import CalledOff, FailedError, RefusedError, SchemaError, StrandlineError
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset, Seq, SeqRange, before, merge_ranges
from strandline.deliver.context import DeliverContext
from strandline.deliver.manage_sinks import alone
from strandline.deliver.quarantine.content import QuarantineObjects, RowContent, open_objects, unpacked
from strandline.deliver.quarantine.rows import OnQuarantinedRows, chosen
from strandline.deliver.send.rejection import REPLAY_PARTITION
from strandline.deliver.sink import ChunkRows, Conflict, Landed, Outcome, Refused, Sender, Sink, TryLater, covers
from strandline.deliver.sink_session import SinkRun
from strandline.iceberg.schema.columns import Column
from strandline.ledger import audit
from strandline.ledger.deliver import intents, lanes, quarantine, sinks
from strandline.ledger.deliver.quarantine import NOT_DELIVERED, Quarantined
from strandline.ledger.engine import Connection


class Replay(StrEnum):
    REPLAYED = "replayed"
    REFUSED = "refused"  # again: it stays in quarantine
    UNKNOWN = "unknown"  # the next replay asks the sink before it sends
    WAITING = "waiting"  # not sent: the sink asked for a pause, or an earlier row failed


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    number: Seq
    outcome: Replay
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    sink: str
    rows: tuple[ReplayedRow, ...]

    @property
    def landed(self) -> int:
        return sum(r.outcome is Replay.REPLAYED for r in self.rows)

    @property
    def failed(self) -> bool:
        return self.landed < len(self.rows)


def replay(
    context: DeliverContext,
    dataset: Dataset,
    columns: Sequence[Column],
    name: str,
    numbers: Sequence[int] | None,
    on_progress: OnQuarantinedRows = lambda done, total: None,
) -> ReplayReport:
    with alone(context, context.ledger.query(sinks.get, name)) as lease:
        with context.ledger.read() as connection:
            record = sinks.get(connection, name)
            rows = quarantine.list_quarantined(connection, record, NOT_DELIVERED)
            anew = [q for q in rows if _is_delivered_anew(connection, record, q)]
        _refuse(record, anew, numbers or ())
        wanted = chosen([q for q in rows if q not in anew], numbers, name)
        if not wanted:
            return ReplayReport(name, ())
        with closing(SinkRun(context, record, dataset, lease)) as run:
            run.fence()
            run.claim()
            by_name = {c.name: c for c in columns}
            return _Replaying(run, by_name, open_objects(context.config), on_progress).replay(wanted)


def _is_delivered_anew(connection: Connection, record: SinkRecord, row: Quarantined) -> bool:
    """Whether the row was quarantined in an older generation, and the present one has handled it or will. A row before
    the beginning of the present generation stays with the older one."""
    if row.generation == record.generation:
        return False
    mine = next((x for x in lanes.unchecked(connection, record) if x.partition == row.partition), None)
    reached = record.planned if mine is None else mine.mark
    if row.seq > (reached or 0):
        return True
    return mine is not None and bool(intents.chunks_of(connection, mine.id, after=before(row.seq), until=row.seq))


def _refuse(record: SinkRecord, anew: Sequence[Quarantined], numbers: Sequence[int]) -> None:
    if gone := [q.seq for q in anew if q.seq in numbers]:
        raise RefusedError(
            f"row {gone[0]} was quarantined in an older generation of {record.name}, and the present one delivers it "
            "again",
            hint=f"`strandline sink quarantine discard {record.name} {gone[0]}` gives the old one up.",
        )


@dataclass
class _Replaying:
    run: SinkRun
    columns: Mapping[str, Column]
    objects: QuarantineObjects
    on_progress: OnQuarantinedRows
    _tried: int = 0
    _landed_rows: list[Seq] = field(default_factory=list)
    _senders: dict[tuple[object, ...], Sender] = field(default_factory=dict)

    def replay(self, wanted: Sequence[Quarantined]) -> ReplayReport:
        held = self._ask(wanted)
        done: list[ReplayedRow] = []
        try:
            for n, row in enumerate(wanted):
                self.on_progress(n, len(wanted))
                done.append(self._replayed(row, held))
                if done[-1].outcome in (Replay.UNKNOWN, Replay.WAITING):  # the others would fare no better
                    check_not_called_off()  # or its request was cut short
                    done += (ReplayedRow(r.seq, Replay.WAITING, "not tried") for r in wanted[n + 1 :])
                    break
        except BaseException as e:
            with suppress(StrandlineError):  # `e` says more
                self._note(e)
            raise
        finally:
            for sender in self._senders.values():
                sender.close()
        self._note()
        return ReplayReport(self.run.record.name, tuple(done))

    def _replayed(self, row: Quarantined, held: Collection[Seq]) -> ReplayedRow:
        self._tried += 1
        if row.seq not in held:
            return self._send(row)
        self._landed(row)
        return ReplayedRow(row.seq, Replay.REPLAYED, "it was there already")

    def _ask(self, wanted: Sequence[Quarantined]) -> set[Seq]:
        """Rows that the sink holds: an earlier replay landed, or a late attempt."""
        sink = self.run.sink(wanted[0].options)
        lanes = sorted({replay_partition(sink, row) for row in wanted})
        after = before(min(row.seq for row in wanted))
        asked = [(self.run.address(p), after) for p in lanes]
        held = {p: merge_ranges(r.rows for r in h.ranges) for p, h in zip(lanes, sink.held(asked), strict=True)}
        return {r.seq for r in wanted if covers(held[replay_partition(sink, r)], SeqRange(r.seq, r.seq))}

    def _send(self, row: Quarantined) -> ReplayedRow:
        body = self.objects.get(row.object)
        if body is None:
            return ReplayedRow(row.seq, Replay.WAITING, f"its content is gone: {self.objects.place(row.object)}")
        try:
            content = unpacked(body, row.object)
            sink = self.run.sink(row.options)
            sender = self._sender(sink, row, content)
        except (FailedError, SchemaError) as e:
            return ReplayedRow(row.seq, Replay.WAITING, e.message)
        if quarantine.start_replay(self.run.context.ledger, row.id) is None:
            return ReplayedRow(row.seq, Replay.WAITING, "it was given up meanwhile")
        failpoints.hit("replay.after_number")
        address = self.run.address(replay_partition(sink, row))
        outcome = sender.send(ChunkRows(address, SeqRange(row.seq, row.seq), content.rows))
        failpoints.hit("replay.after_send")
        return self._recorded(row, outcome)

    def _recorded(self, row: Quarantined, outcome: Outcome) -> ReplayedRow:
        match outcome:
            case Landed():
                self._landed(row)
                return ReplayedRow(row.seq, Replay.REPLAYED)
            case Refused(why):
                quarantine.refused_again(self.run.context.ledger, row.id, why)
                return ReplayedRow(row.seq, Replay.REFUSED, why)
            case Conflict(held):
                return ReplayedRow(row.seq, Replay.UNKNOWN, f"it overlaps {', '.join(map(str, held))}")
            case TryLater(why, _):
                return ReplayedRow(row.seq, Replay.WAITING, why)
        return ReplayedRow(row.seq, Replay.UNKNOWN, outcome.why)

    def _landed(self, row: Quarantined) -> None:
        quarantine.start_replay(self.run.context.ledger, row.id)
        if quarantine.replayed(self.run.context.ledger, row.id):
            self._landed_rows.append(row.seq)
        self.objects.remove(row.object)

    def _sender(self, sink: Sink, row: Quarantined, content: RowContent) -> Sender:
        """A sender for the columns that the row was made of then. Raises SchemaError if the dataset has lost one."""
        key = (tuple(sorted(row.options.items())), content.columns)
        if key not in self._senders:
            if gone := [c for c in content.columns if c not in self.columns]:
                raise SchemaError(f"{self.run.dataset.name} no longer has the column {gone[0]}")
            sink.prepare([self.columns[c] for c in content.columns])
            self._senders[key] = sink.sender(self.run.pass_token)
        return self._senders[key]

    def _note(self, ended_by: BaseException | None = None) -> None:
        """Records what was done, also of a replay that ended early: its rows are at the sink."""
        early: dict[str, object] = {}
        if isinstance(ended_by, CalledOff):
            early = {"called_off": True, "called_off_by": ended_by.by}
        elif ended_by is not None:
            early = {"failed": type(ended_by).__name__}
        with self.run.context.ledger.write() as connection:
            audit.record(
                connection, Event.QUARANTINE_REPLAYED, sink=self.run.record.name, tried=self._tried,
                replayed=len(self._landed_rows), numbers=self._landed_rows[:100], **early,
            )  # fmt: skip


def replay_partition(sink: Sink, row: Quarantined) -> str:
    return REPLAY_PARTITION if sink.stores_watermarks else row.partition
