"""Batches of missing entries that a run drops. Each is recorded before its commit and after it. The first record has
the lost rows, so that a process that later finds that the commit landed knows which rows were lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import SinkId
from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import ReconcileRunId
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.ledger import audit
from strandline.ledger.deliver import losses
from strandline.ledger.deliver.lanes import SinkWatermark
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.engine import from_row, utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.read import consumers
from strandline.ledger.replicate import followers
from strandline.ledger.schema.reconcile import dropped_batch


@dataclass(frozen=True, slots=True)
class GoneRows:
    """The rows of a missing file, according to its entry."""

    rows: SeqRange
    count: int


@dataclass(frozen=True, slots=True)
class SinkLoss:
    """Rows that a sink will not get. Nobody can read any more which of them it needed, so `count` is an upper bound."""

    sink: SinkId
    name: str
    generation: int
    rows: SeqRange
    count: int


def losses_above_watermarks(marks: Sequence[SinkWatermark], gone: Sequence[GoneRows]) -> list[SinkLoss]:
    """The lost rows above each sink's watermark, in as few ranges as possible. Pure."""
    lost: list[SinkLoss] = []
    for at in marks:
        mark = int(at.mark or 0)
        # Clipped to the sequence numbers above the watermark, which also bound the count.
        above = [
            GoneRows(rows, min(g.count, len(rows)))
            for g in gone
            if g.rows.hi > mark
            for rows in (SeqRange(Seq(max(int(g.rows.lo), mark + 1)), g.rows.hi),)
        ]
        for rows in merge_ranges(g.rows for g in above):
            count = sum(g.count for g in above if rows.lo <= g.rows.lo <= rows.hi)
            lost.append(SinkLoss(at.sink, at.name, at.generation, rows, min(count, len(rows))))
    return lost


@dataclass(frozen=True, slots=True)
class NewBatch:
    token: str
    table: str
    entries: int
    samples: Sequence[str]
    gone: Sequence[GoneRows] = ()
    lost: Sequence[SinkLoss] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedBatch(NewBatch):
    id: int
    run: ReconcileRunId
    dropped: int | None  # None while it is not known whether the commit landed


def begin(connection: sa.Connection, run: ReconcileRunId, new: NewBatch) -> DroppedBatch:
    now = utc_now()
    values = {"token": new.token, "table_name": new.table, "entries": new.entries, "state": "begun"}
    inserted = connection.execute(
        dropped_batch.insert()
        .values(
            run_id=run,
            **values,
            samples=json.dumps(list(new.samples)),
            gone=json.dumps([[g.rows.lo, g.rows.hi, g.count] for g in new.gone]),
            lost=json.dumps([[x.sink, x.name, x.generation, x.rows.lo, x.rows.hi, x.count] for x in new.lost]),
            begun_at=now,
            changed_at=now,
        )
        .returning(dropped_batch)
    )
    return _batch(inserted.one())


def end(connection: sa.Connection, batch: DroppedBatch, dropped: int | None) -> bool:
    """Records how many entries were dropped; None if the commit did not land, as far as the table shows. If it landed,
    the rows are recorded as purged, and as losses of the sinks that lack them. False, without a change, if the outcome
    was recorded before."""
    state = "undone" if dropped is None else "done"
    before = ("begun",) if dropped is None else ("begun", "undone")
    changed = connection.execute(
        dropped_batch.update()
        .where(dropped_batch.c.id == batch.id, dropped_batch.c.state.in_(before))
        .values(state=state, dropped=dropped, changed_at=utc_now())
    )
    if changed.rowcount != 1:
        return False
    if dropped:
        _record_losses(connection, batch)
    return True


def _record_losses(connection: sa.Connection, batch: DroppedBatch) -> None:
    dataset = datasets.find(connection, batch.table)
    if dataset is None:
        return
    for rows in merge_ranges(g.rows for g in batch.gone):
        count = sum(g.count for g in batch.gone if rows.lo <= g.rows.lo <= rows.hi)
        losses.add_purge(connection, dataset.id, rows, count)
    for loss in batch.lost:
        after = Seq(loss.rows.lo - 1) if loss.rows.lo > 1 else None
        # The entry does not say to which partitions its rows belong.
        new = NewLoss("", after, loss.rows.hi, loss.count)
        losses.add_for(connection, dataset.id, loss.sink, loss.generation, Reason.PURGED, [new])
    for name in sorted({loss.name for loss in batch.lost}):
        rows_lost = sum(loss.count for loss in batch.lost if loss.name == name)
        audit.record(connection, Event.ROWS_LOST, sink=name, dataset=batch.table, rows=rows_lost, rule="reconcile")
    for at in followers.list_progress(connection, dataset):
        follower, after = at.follower, at.number
        if upto := _record_dropped(connection, batch, Event.FOLLOWER_ROWS_DROPPED, after, follower=follower.name):
            followers.drop_for(connection, dataset.id, follower.id, upto)
    for reader in consumers.of_dataset(connection, dataset.id):
        event, after = Event.CONSUMER_ROWS_DROPPED, reader.watermark
        if upto := _record_dropped(connection, batch, event, after, consumer=reader.name):
            consumers.drop_for(connection, reader.id, upto)


def _record_dropped(
    connection: sa.Connection, batch: DroppedBatch, event: Event, after: Seq | None, **reader: str
) -> Seq | None:
    """Audits the lost rows above a reader's watermark, and returns their last sequence number; None if there are none.
    The reader may have some of these rows, so the count is an upper bound."""
    lacking = [g for g in batch.gone if g.rows.hi > (after or 0)]
    if not lacking:
        return None
    rows, upto = sum(g.count for g in lacking), max(g.rows.hi for g in lacking)
    audit.record(connection, event, **reader, dataset=batch.table, rows=rows, after=after, up_to=upto, rule="reconcile")
    return upto


def begun(connection: sa.Connection) -> list[DroppedBatch]:
    return _batches(connection, dropped_batch.c.state == sa.literal_column("'begun'", sa.Text))


def of_run(connection: sa.Connection, run: ReconcileRunId) -> list[DroppedBatch]:
    return _batches(connection, dropped_batch.c.run_id == run)


def _batches(connection: sa.Connection, wanted: sa.ColumnElement[bool]) -> list[DroppedBatch]:
    query = sa.select(dropped_batch).where(wanted).order_by(dropped_batch.c.id)
    return [_batch(row) for row in connection.execute(query)]


def _batch(row: Any) -> DroppedBatch:
    gone = (GoneRows(SeqRange(Seq(lo), Seq(hi)), count) for lo, hi, count in json.loads(row.gone))
    lost = (
        SinkLoss(SinkId(sink), name, generation, SeqRange(Seq(lo), Seq(hi)), count)
        for sink, name, generation, lo, hi, count in json.loads(row.lost)
    )
    return from_row(
        DroppedBatch,
        row,
        run=row.run_id,
        table=row.table_name,
        samples=tuple(json.loads(row.samples)),
        gone=tuple(gone),
        lost=tuple(lost),
    )
