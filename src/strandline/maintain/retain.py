"""Retention: deletes rows that are old enough and that every sink, follower and consumer has; at a follower, those that
every sink of the leader and every consumer has.

Durable steps, in this order: the floor in the ledger (if a rule drops rows that a sink lacks, in one transaction with
the watermarks that move past them and the losses), the floor on the table, the delete. A process that stops in between
and continues later deletes only what the floor covers. `tests/model/floor_model.py` explores all orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from strandline.core import failpoints
from strandline.core.clock import current_moment
from strandline.core.delivery_types import SinkRecord
from strandline.core.errors import LeaseLost, SchemaError, WatermarkMoved
from strandline.core.read_token import Continuation
from strandline.core.records.audit_events import Event
from strandline.core.settings.maintain import RetainSettings
from strandline.core.types import SEQ_COLUMN, Dataset, Lease, Seq
from strandline.iceberg.spark import floor as table_floor
from strandline.iceberg.spark.table_change import check_epoch
from strandline.ledger import audit
from strandline.ledger.deliver import losses, sinks
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import blocks, sequence
from strandline.ledger.maintain import floors, skipped_rows
from strandline.ledger.maintain import retention_holds as holds
from strandline.ledger.maintain.floors import SinkProgress
from strandline.ledger.maintain.skipped_rows import LaneDrop, LanePosition
from strandline.maintain import clock
from strandline.maintain import count_rows as rows
from strandline.maintain.awaited import (
    Lacking,
    count_held,
    count_lacking,
    list_awaited,
    own_sinks,
    pass_over,
    record_holds,
)
from strandline.maintain.context import MaintainContext, MaintainProgress, quiet, without_deliverer
from strandline.maintain.retain_plan import (
    Awaited,
    AwaitedVerdict,
    RetainVerdict,
    cutoff,
    drop_point,
    due_condition,
    judge,
    judge_awaited,
    numbers_condition,
    settle_point,
)
from strandline.maintain.retain_result import HeldRows, LostRows, Retained
from strandline.read import rollback
from strandline.read.settled_view import SettledView


def retain(
    context: MaintainContext,
    dataset: Dataset,
    rule: RetainSettings,
    *,
    now: datetime,
    accept_clock: bool = False,
    dry_run: bool = False,
    progress: MaintainProgress = quiet,
) -> Retained:
    """Deletes the rows that the rule lets go. Raises `Skipped` if the clock may have jumped."""
    jump = timedelta(seconds=context.config.settings.maintain.clock_jump_seconds)
    clock.check(context.ledger, dataset.id, current_moment(now), jump=jump, accept=accept_clock, rehearse=dry_run)
    return context.retried(lambda: _Retention(context, dataset, rule, now, progress).run(dry_run=dry_run))


@dataclass(frozen=True, slots=True)
class _LosingSink:
    """A sink that loses rows. The run holds its lease, so that nobody delivers to it meanwhile."""

    record: SinkRecord
    lease: Lease | None  # None in a dry run
    positions: tuple[LanePosition, ...]


@dataclass(frozen=True, slots=True)
class _Drop:
    """What a sink loses, and how its lanes move."""

    losing: _LosingSink
    lanes: tuple[LaneDrop, ...]
    dropped: tuple[NewLoss, ...]  # lost rows that the watermarks move past
    deleted: tuple[NewLoss, ...]  # lost rows where the watermarks stay, because rows between them are not due
    planned_stays: bool  # a partition without a lane, which begins at `planned`, has rows that are not due

    @property
    def rows(self) -> int:
        return sum(x.rows or 0 for x in (*self.dropped, *self.deleted))


@dataclass
class _Retention:
    context: MaintainContext
    dataset: Dataset
    rule: RetainSettings
    now: datetime
    progress: MaintainProgress
    table: SettledView | None = field(default=None)

    def run(self, *, dry_run: bool) -> Retained:
        with self.context.ledger.read() as connection:
            sealed = blocks.sealed(connection, self.dataset.id)
            before = floors.get(connection, self.dataset.id)
            progress = own_sinks(connection, self.dataset)
            held_before = holds.of_dataset(connection, self.dataset.id)
            awaited = list_awaited(connection, self.dataset, self.rule)
        due = None if sealed is None else self._due(sealed, self.cutoff)
        drop_due = None if sealed is None or self.drop_cutoff is None else self._due(sealed, self.drop_cutoff)
        verdict = judge(
            progress,
            due=due,
            drop_due=drop_due,
            holds=held_before,
            held_before=self.now - (self.rule.drop_after or timedelta()),
            paused_sinks=self.rule.paused_sinks,
        )
        others = judge_awaited(
            verdict,
            awaited,
            due=due,
            drop_due=lambda after: None if sealed is None else self._due(sealed, cutoff(self.cutoff, after)),
            now=self.now,
        )
        verdict = replace(verdict, up_to=others.up_to)
        held: tuple[tuple[SinkProgress, int], ...] = ()
        lost: tuple[_Drop, ...] = ()
        dropped = held_others = Lacking()
        deleted, end, floor = 0, None, before
        if sealed is not None and due is not None:
            with self._lease_losing(verdict.passed_over, dry_run=dry_run) as losing:
                end = settle_point(verdict.up_to, [s for p in losing for s in p.positions])
                if end is not None:
                    lost, dropped, deleted, floor = self._delete(
                        sealed, progress, verdict, others, losing, end, before, dry_run=dry_run
                    )
            if deleted and not dry_run:
                self.table = None
            held = self._held(verdict.holding, sealed, due, end, lost if dry_run else ())
            if others.holding:
                condition = numbers_condition(due, None) + f" AND ({self._condition(sealed, self.cutoff)})"
                held_others = count_held(self._table(sealed).df, others.holding, condition, end)
        released = () if dry_run else self._record(held, held_others, deleted, end, due)
        since = {h.sink: h.since for h in held_before}
        return Retained(
            self.cutoff,
            self.rule.column,
            sealed,
            due,
            end if deleted else None,
            deleted,
            before,
            floor,
            (
                *(HeldRows(r.sink.name, n, since.get(r.sink.id, self.now)) for r, n in held),
                *(HeldRows(p.title, n, p.held_since or self.now) for p, n in held_others),
            ),
            (
                *(LostRows(d.losing.record.name, d.rows, len(d.dropped) + len(d.deleted)) for d in lost if d.rows),
                *(LostRows(p.title, n, 1) for p, n in dropped if n),
            ),
            released,
        )

    # --- what is due ---

    @property
    def cutoff(self) -> datetime:
        return cutoff(self.now, self.rule.older_than)

    @property
    def drop_cutoff(self) -> datetime | None:
        """Older rows have been due for as long as the rule allows to hold them; None if it sets no limit."""
        after = self.rule.drop_after
        return cutoff(self.cutoff, after) if self.rule.on_lag == "drop" and after is not None else None

    def _due(self, sealed: Seq, moment: datetime) -> Seq | None:
        """The highest sequence number of a row that is old enough."""
        if self.rule.column is None:
            return self.context.ledger.query(floors.published_before, self.dataset.id, moment, sealed)
        self.progress("searching for rows that are due", 0, None)
        return rows.count(self._table(sealed).df, self._condition(sealed, moment)).last

    def _table(self, sealed: Seq) -> SettledView:
        if self.table is None:
            self.table = rows.settled(self.context, self.dataset, sealed)
        return self.table

    def _condition(self, sealed: Seq, moment: datetime) -> str:
        """The condition, besides that on sequence numbers, for a row that is old enough."""
        if self.rule.column is None:
            return "true"
        if (column := self._table(sealed).view.column(self.rule.column)) is None:
            raise SchemaError(f"{self.dataset.name} has no column {self.rule.column!r}")
        return due_condition(self.rule.column, str(column["type"]), moment)

    # --- what stays ---

    def _held(
        self, holding: Sequence[SinkProgress], sealed: Seq, due: Seq, end: Seq | None, rehearsed: Sequence[_Drop]
    ) -> tuple[tuple[SinkProgress, int], ...]:
        """How many due rows are held for each sink after the delete. Rows that a dry run reports as lost are not held.
        A sink that lacks none of the rows still holds them while its watermark is below them."""
        held = []
        lost = {d.losing.record.id: d.rows for d in rehearsed}
        condition = numbers_condition(due, None) + f" AND ({self._condition(sealed, self.cutoff)})"
        for n, one in enumerate(holding):
            self.progress("counting rows that are held", n, len(holding))
            positions = self.context.ledger.query(skipped_rows.lane_positions, one.sink)
            counted = rows.count_lacking(self._table(sealed).df, one.sink, positions, due, condition)
            total = max(0, sum(c.rows for c in counted.values()) - lost.get(one.sink.id, 0))
            above = f"{condition} AND `{SEQ_COLUMN}` > {max(int(one.number or 0), int(end or 0))}"
            if total or rows.count(self._table(sealed).df, above).rows:
                held.append((one, total))
        return tuple(held)

    # --- what goes ---

    @contextmanager
    def _lease_losing(self, chosen: Sequence[SinkProgress], *, dry_run: bool) -> Iterator[list[_LosingSink]]:
        """Holds the leases of the chosen sinks until the rows are deleted, so that the counted losses are exact."""
        with ExitStack() as stack:
            losing = []
            for one in chosen:
                lease = None if dry_run else stack.enter_context(without_deliverer(self.context, one.sink))
                with self.context.ledger.read() as connection:
                    record = self._current(connection, one.sink)
                    if record is None or (record.generation, record.state) != (one.sink.generation, one.sink.state):
                        raise WatermarkMoved(f"sink {one.sink.name} was changed meanwhile", hint="Try again.")
                    losing.append(_LosingSink(record, lease, tuple(skipped_rows.lane_positions(connection, record))))
            yield losing

    def _current(self, connection: Connection, record: SinkRecord) -> SinkRecord | None:
        return next((s for s in sinks.of_dataset(connection, self.dataset.id) if s.id == record.id), None)

    def _delete(
        self,
        sealed: Seq,
        progress: Sequence[SinkProgress],
        verdict: RetainVerdict,
        others: AwaitedVerdict,
        losing: Sequence[_LosingSink],
        end: Seq,
        before: Seq | None,
        *,
        dry_run: bool,
    ) -> tuple[tuple[_Drop, ...], Lacking, int, Seq | None]:
        table = self._table(sealed)
        condition = self._delete_condition(sealed, progress, verdict, others.passed_over, end)
        self.progress("counting rows to delete", 0, None)
        matching = rows.count(table.df, condition)
        lost = tuple(self._drop(sealed, p, end, condition) for p in losing)
        dropped = count_lacking(table.df, others.passed_over, condition)
        if dry_run or not (matching.rows or any(d.lanes for d in lost)):
            return lost, dropped, matching.rows, before
        # No higher than needed: a sink that is added later begins above the floor.
        epoch, floor = self._raise_floor(end if lost or matching.last is None else matching.last, lost, dropped)
        failpoints.hit("retain.after_floor")
        self.progress("deleting rows", 0, matching.rows)
        table_floor.write_floor(table.tables, self.dataset.name, floor)
        check_epoch(table.tables.view(self.dataset.name), epoch, "nothing was deleted")
        # Rows that have become due since the count are above the floor: a sink that was added meanwhile must get them.
        table_floor.delete(table.tables, self.dataset.name, f"({condition}) AND `_ingest_seq` <= {floor}")
        failpoints.hit("retain.after_delete")
        rollback.move_tag(self.context.ledger, table.tables, self.dataset)
        self.progress("deleting rows", matching.rows, matching.rows)
        return lost, dropped, matching.rows, floor

    def _delete_condition(
        self,
        sealed: Seq,
        progress: Sequence[SinkProgress],
        verdict: RetainVerdict,
        others: Sequence[Awaited],
        end: Seq,
    ) -> str:
        """The condition for the rows to delete. With a rule on a column, rows above the lowest watermark are deleted
        only if every sink, and each of `others`, may lose them: whoever may be waited for longest decides."""
        table = self._table(sealed)
        upper = numbers_condition(end, None if table.has_no_foreign_rows else table.owned)
        if self.rule.column is None:
            return upper
        due = self._condition(sealed, self.cutoff)
        ignored = {r.sink.id for r in verdict.passed_over if r.sink.state == "paused"}
        ignored = ignored if self.rule.paused_sinks == "ignore" else set()
        numbers = [int(r.number or 0) for r in progress if r.sink.id not in ignored]
        safe = min([int(end), *numbers, *(p.waits_at for p in others)])
        moments = [cutoff(self.cutoff, p.drop_after) for p in others if p.drop_after is not None]
        moments += [] if self.drop_cutoff is None else [self.drop_cutoff]
        if safe >= end or not moments:
            return f"{upper} AND ({due})"
        drop = self._condition(sealed, min(moments))
        return f"{upper} AND (({drop}) OR (`_ingest_seq` <= {safe} AND ({due})))"

    def _drop(self, sealed: Seq, losing: _LosingSink, end: Seq, condition: str) -> _Drop:
        self.progress(f"counting the rows that {losing.record.name} loses", 0, None)
        counted = rows.count_lacking(self._table(sealed).df, losing.record, losing.positions, end, condition)
        moved, dropped, deleted = [], [], []
        for position in losing.positions:
            counts = counted.pop(position.partition, None)
            if (point := drop_point(position, end)) is None:
                continue
            count = 0 if counts is None else counts.rows
            if counts is None or counts.first_kept is None:
                moved.append(LaneDrop(position, point))
                if count or position.intent is not None:  # even without rows, the loss explains the unkept promise
                    dropped.append(NewLoss(position.partition, position.mark, point, count))
            elif count:
                deleted.append(NewLoss(position.partition, position.mark, end, count))
        planned_stays = any(counts.first_kept is not None for counts in counted.values())
        for partition, counts in counted.items():  # partitions without a lane begin at `planned`
            (deleted if counts.first_kept else dropped).append(
                NewLoss(partition, losing.record.planned, end, counts.rows)
            )
        return _Drop(losing, tuple(moved), tuple(dropped), tuple(x for x in deleted if x.rows), planned_stays)

    def _raise_floor(self, end: Seq, lost: Sequence[_Drop], dropped: Lacking) -> tuple[int, Seq]:
        """Raises the floor, moves the sinks' watermarks and records the losses, in one transaction. Returns the
        ledger's epoch and the floor. Raises WatermarkMoved if a sink or another reader was added or changed since the
        count."""
        with self.context.ledger.write() as connection:
            floors.lock_to_raise(connection, self.dataset.id)
            losing = {d.losing.record.id for d in lost}
            progress = own_sinks(connection, self.dataset)
            if any(int(r.number or 0) < end for r in progress if r.sink.id not in losing):
                raise WatermarkMoved("a sink was added or reset meanwhile", hint="Try again.")
            pass_over(connection, self.dataset, self.rule, dropped, end)
            for drop in lost:
                self._move(connection, drop, end)
            if (floors.get(connection, self.dataset.id) or 0) < end or lost or dropped:
                floors.take_number(connection, self.context.witness)
            floor = floors.raise_to(connection, self.dataset.id, end)
            epoch = sequence.read(connection).epoch
        if lost:
            failpoints.hit("retain.after_drop_marks")
        return epoch, floor

    def _move(self, connection: Connection, drop: _Drop, end: Seq) -> None:
        record = drop.losing.record
        lease = drop.losing.lease
        current = self._current(connection, record)
        if current is None or current.state != record.state or lease is None:
            raise WatermarkMoved(f"sink {record.name} was changed meanwhile", hint="Try again.")
        stays = drop.planned_stays or any(x.after == record.planned and x.until == end for x in drop.deleted)
        planned = record.planned if stays else end
        if not skipped_rows.move(connection, record, lease, drop.lanes, planned=planned, token=self._token):
            raise LeaseLost(f"{record.name}: a deliverer has taken over meanwhile", hint="Try again.")
        losses.add(connection, record, Reason.DROPPED, drop.dropped)
        losses.add(connection, record, Reason.DELETED, drop.deleted)
        if drop.rows:
            audit.record(
                connection, Event.ROWS_LOST, sink=record.name, dataset=self.dataset.name, rows=drop.rows, up_to=end,
                partitions=len(drop.dropped) + len(drop.deleted), state=record.state.value, rule=self.rule.on_lag,
            )  # fmt: skip

    def _token(self, mark: Seq | None) -> str:
        return Continuation(self.context.lake_id, self.dataset.uuid, mark).encode()

    # --- records ---

    def _record(
        self,
        held: Sequence[tuple[SinkProgress, int]],
        others: Lacking,
        deleted: int,
        end: Seq | None,
        due: Seq | None,
    ) -> tuple[str, ...]:
        with self.context.ledger.write() as connection:
            current = {s.id for s in sinks.of_dataset(connection, self.dataset.id)}
            held = [(r, n) for r, n in held if r.sink.id in current]
            for one, count in held:
                new = holds.keep(
                    connection, self.dataset.id, one.sink.id, rows=count, up_to=due or Seq(1), now=self.now
                )
                if new:
                    audit.record(
                        connection, Event.RETENTION_HELD, dataset=self.dataset.name, sink=one.sink.name, rows=count,
                        up_to=due,
                    )  # fmt: skip
            released = holds.release(connection, self.dataset.id, but=[r.sink.id for r, _ in held])
            for name in released:
                audit.record(connection, Event.RETENTION_RELEASED, dataset=self.dataset.name, sink=name)
            released += record_holds(connection, self.dataset, others, due=due, now=self.now)
            if deleted:
                audit.record(connection, Event.RETAINED, dataset=self.dataset.name, rows=deleted, up_to=end)
        return tuple(released)
