"""The resync: what a ledger does when the witness shows that it does not know everything.

It first reads all tables without a lock, to find those that cannot be read: that may take long. The rest is done under
the counter's lock, so nobody reserves a sequence number meanwhile. Every step can be repeated: a crash in the middle
leaves witness and counter apart, and the next resync begins again. Raising the epoch in the tables comes first, because
from then on another live copy of the ledger can no longer publish.

A dataset whose table cannot be read is postponed: an open block over the sequence numbers in question holds its seal,
and nothing is ingested, read or delivered there until `resync_postponed` has done the rest (docs/adr/0041).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strandline.core import failpoints
from strandline.core.audit_events import Event
from strandline.core.batch_names import wholes_of
from strandline.core.errors import NoSuchDataset, ResyncNeeded
from strandline.core.types import (
    BRANCH_PREFIX,
    BlockKind,
    Dataset,
    History,
    Published,
    Reserved,
    Seq,
    SeqRange,
    SnapshotId,
)
from strandline.iceberg.metadata.block_plans import AlreadyPublished, batch_elsewhere
from strandline.iceberg.metadata.table_metadata import (
    ADOPTED_PROPERTY,
    DELIVER_BY_PROPERTY,
    HISTORY_PROPERTY,
    LAKE_PROPERTY,
    RecordedPurge,
    TableView,
    WapId,
    check_fit,
)
from strandline.iceberg.spark.java_errors import explain
from strandline.ingest.context import IngestContext
from strandline.ingest.recover import branch_complete
from strandline.ingest.resync_received import (
    end_hold_until_resynced,
    hold_until_resynced,
    is_after_the_copy,
    take_back_received,
)
from strandline.ingest.table_peek import peek
from strandline.ledger import audit
from strandline.ledger.deliver import losses, sinks
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import blocks, datasets, sequence, table_states
from strandline.ledger.maintain import floors
from strandline.ledger.receive import ended_batches
from strandline.read import rollback

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resynced:
    gap: SeqRange | None  # the sequence numbers that this ledger did not know; None if the witness was behind instead
    epoch: int
    rolled_forward: tuple[SeqRange, ...]
    batches: int
    datasets_found: tuple[str, ...]


def with_resync(work: IngestContext, step: Callable[[], T]) -> T:
    """Runs `step`; if the ledger needs a resync first, resyncs it and runs `step` again."""
    for _ in range(3):
        try:
            return step()
        except ResyncNeeded:
            resync_ledger(work)
    return step()


def resync_ledger(work: IngestContext, *, rebuild: bool = False) -> Resynced | None:
    """None if witness and counter agree, which they nearly always do."""
    unreadable: Mapping[str, Exception] | None = None
    while True:
        with work.ledger.write() as connection:
            counter = sequence.lock(connection)
            mark = work.witness.read()
            mark.check_lake(counter.lake)
            if mark.highest == counter.last and not rebuild:
                return None
            if unreadable is not None:
                opened = _open(work, connection, counter, mark.highest, unreadable, rebuild=rebuild)
                break
        # Not under the lock: Iceberg may try for a minute and a half. Datasets among them are postponed, even if they
        # can be read a moment later. What the resync goes by is read under the lock.
        _, unreadable = _read_tables(work, {})
    failpoints.hit("open.after_commit")
    return opened


def _read_tables(
    work: IngestContext, known_unreadable: Mapping[str, Exception]
) -> tuple[dict[str, TableView], dict[str, Exception]]:
    """The tables of the catalog; and those that cannot be read, and why. Those that are known are not read again."""
    views: dict[str, TableView] = {}
    unreadable: dict[str, Exception] = {}
    for name in work.tables.names():
        try:
            if name in known_unreadable:
                raise known_unreadable[name]
            views[name] = _view(work, name)
        except NoSuchDataset:
            continue  # dropped since it was listed
        except failpoints.FailpointError:
            raise
        except Exception as e:  # whatever a damaged table raises
            unreadable[name] = e
    return views, unreadable


def _view(work: IngestContext, name: str) -> TableView:
    peek(work.config, name)
    return work.tables.view(name)


def _open(
    work: IngestContext,
    connection: Connection,
    counter: sequence.Counter,
    highest: int,
    known_unreadable: Mapping[str, Exception],
    *,
    rebuild: bool,
) -> Resynced:
    gap = SeqRange(Seq(counter.last + 1), Seq(highest)) if highest > counter.last else None
    # One number more: another copy of this ledger with the same counter must notice, too.
    last = max(highest, counter.last) + 1
    known, postponed = datasets.list_datasets(connection), blocks.postponed(connection)
    views, unreadable = _own_tables(work, known, postponed, known_unreadable)
    found = _register(connection, views)
    epoch = max([counter.epoch, *(v.epoch for v in views.values())]) + 1
    failpoints.hit("open.before_epoch")
    for name in views:
        work.tables.raise_epoch(name, epoch)
    failpoints.hit("open.after_epoch")
    rolled = [r for name in views for r in _roll_forward(work, connection, name, gap, epoch)]
    failpoints.hit("open.after_roll_forward")
    batches = 0
    holding: dict[str, str] = {}
    for dataset in datasets.list_datasets(connection):
        if dataset.name in views and gap is not None:
            view = work.tables.view(dataset.name)
            complete = is_after_the_copy(connection, dataset, view)
            batches += _take_back_batches(connection, dataset, view, gap, work.lake)
            if (why := take_back_received(work, connection, dataset, gap, complete=complete)) is not None:
                holding[dataset.name] = why
            blocks.insert_published(
                connection, dataset.id, gap, kind=BlockKind.RECOVERED, batch_id=f"recovered-{epoch}-{gap.lo}-{gap.hi}"
            )
        if dataset.name in views and (settled := work.tables.view(dataset.name).settled) is not None:
            table_states.raise_settled(connection, dataset.id, settled)  # the table knows better than an old copy
    in_order = sorted((d for d in datasets.list_datasets(connection) if d.name in views), key=lambda d: d.id)
    below = [s for d in in_order for s in _take_floor(work, connection, d)]
    purged = [s for d in in_order for s in _take_purges(work, connection, d, counter.last)]
    for dataset in (d for d in datasets.list_datasets(connection) if d.name in unreadable):
        rows = SeqRange(Seq(counter.last + 1), Seq(last))
        blocks.postpone(connection, dataset.id, rows, f"recovered-{epoch}-{rows.lo}-{rows.hi}")
        table_states.record_trouble(connection, dataset.id, unreadable[dataset.name])
        hold_until_resynced(connection, dataset)
    datasets.forget_counts(connection)
    fenced = blocks.fence_open_blocks(connection)
    sinks.forget_leases(connection)
    failpoints.hit("open.before_commit")
    work.witness.raise_to(last, expected=highest)
    sequence.move(connection, last=last, epoch=epoch)
    event = Event.LEDGER_REBUILT if rebuild else Event.LEDGER_RESYNCED
    audit.record(
        connection, event, counter=counter.last, witness=highest, epoch=epoch, rolled_forward=[str(r) for r in rolled],
        batches=batches, fenced=fenced, datasets_found=found, unreadable=sorted(unreadable),
        sinks_below_the_floor=below, sinks_below_a_purge=purged, receivers_on_hold=holding,
    )  # fmt: skip
    return Resynced(gap, epoch, tuple(rolled), batches, tuple(found))


def _take_floor(work: IngestContext, connection: Connection, dataset: Dataset) -> list[str]:
    """Takes the floor from the table; returns the sinks that are below it by this ledger: they may have got those rows,
    or were passed over. The table is read after its epoch was raised: a retention that writes its floor later checks
    the epoch again, and deletes nothing."""
    floor = Seq(work.tables.view(dataset.name).floor)
    if floor <= (floors.get(connection, dataset.id) or 0):
        return []
    floors.lock(connection, dataset.id)  # a sink that is being added is seen here, or begins above the floor
    floors.rise(connection, dataset.id, floor)
    return _forget_below(connection, dataset, floor)


def _take_purges(work: IngestContext, connection: Connection, dataset: Dataset, last: int) -> list[str]:
    """As with the floor: takes purges that this ledger has forgotten, and returns sinks that may have lost rows by
    them. `last` is the ledger's counter."""
    recorded = work.tables.view(dataset.name).purged
    new = forgotten_purges(recorded, losses.purged(connection, dataset.id), last)
    for purge in new:
        losses.add_purge(connection, dataset.id, purge.rows, max(1, purge.count))
    return _forget_below(connection, dataset, max((purge.rows.hi for purge in new), default=Seq(0)))


def _forget_below(connection: Connection, dataset: Dataset, number: Seq) -> list[str]:
    below = [r for r in floors.list_sink_progress(connection, dataset.id) if (r.number or 0) < number]
    for found in below:
        losses.add(connection, found.sink, Reason.FORGOTTEN, [NewLoss("", found.number, number, None)])
    return [found.sink.name for found in below]


def forgotten_purges(recorded: Sequence[RecordedPurge], known: Sequence[SeqRange], last: int) -> list[RecordedPurge]:
    """A ledger whose counter is at `last` knew of all purges with lower numbers. For purges without a number both ends
    must match: among many purges, one between others does not change the ends."""
    first, end = {r.lo for r in known}, {r.hi for r in known}
    return [p for p in recorded if p.number > last or not (p.rows.lo in first and p.rows.hi in end)]


def _own_tables(
    work: IngestContext,
    known: Sequence[Dataset],
    postponed: Sequence[Reserved],
    known_unreadable: Mapping[str, Exception],
) -> tuple[dict[str, TableView], dict[str, str]]:
    """All tables of the catalog that name this lake, whether the ledger knows them or not; and those that cannot be
    read, or were postponed before, with the reason. Raises if no dataset can be read: then storage is unavailable."""
    ours = {d.name for d in known}
    waiting = {d.name for d in known if d.id in {b.head.dataset for b in postponed}}
    # Nobody else's can be postponed: it may be a new dataset.
    found, failed = _read_tables(work, {name: e for name, e in known_unreadable.items() if name in ours})
    own = {name: view for name, view in found.items() if view.properties.get(LAKE_PROPERTY) == work.lake}
    unreadable = {name: explain(e, "it cannot be read").message for name, e in failed.items()}
    # The ranges of a dataset are resynced one after the other, the lowest first.
    unreadable |= {name: "it is still to be resynced over lower sequence numbers" for name in own if name in waiting}
    views = {name: view for name, view in own.items() if name not in waiting}
    failure = next((e for name, e in failed.items() if name in ours), None)
    if failure is not None and not views:
        raise failure
    return views, unreadable


def resync_postponed(work: IngestContext) -> list[str]:
    """Resyncs postponed datasets whose tables can be read by now. Returns the others, each with its reason."""
    with work.ledger.read() as connection:
        waiting = {b.head.dataset for b in blocks.postponed(connection)}
        known = [d for d in datasets.list_datasets(connection) if d.id in waiting]
    left = []
    for dataset in known:
        if work.backoff.is_waiting(dataset.id):
            left.append(f"{dataset.name}: it could not be read a short while ago")
            continue
        started_at = work.backoff.now()
        try:
            _view(work, dataset.name)  # not under the lock: Iceberg may try for a minute and a half
            _open_later(work, dataset)
            work.backoff.succeeded(dataset.id)
        except (ResyncNeeded, failpoints.FailpointError):
            raise
        except Exception as e:
            work.backoff.failed(dataset.id, started_at)
            reason = explain(e, "it cannot be read").message
            work.ledger.change(table_states.record_trouble, dataset.id, reason)
            left.append(f"{dataset.name}: {reason}")
    return left


def _open_later(work: IngestContext, dataset: Dataset) -> None:
    """Resyncs one dataset over its postponed ranges: one transaction under the counter's lock; can be repeated."""
    with work.ledger.write() as connection:
        counter = sequence.check(connection, work.witness)
        if not (waiting := blocks.postponed(connection, dataset.id)):
            return  # another process was faster
        view = work.tables.view(dataset.name)
        check_fit(view, dataset, work.lake)
        # A higher epoch was raised by a ledger of which this one is an older copy.
        epoch = counter.epoch if view.epoch <= counter.epoch else view.epoch + 1
        work.tables.raise_epoch(dataset.name, epoch)
        failpoints.hit("postponed.after_epoch")
        complete = is_after_the_copy(connection, dataset, view)
        end_hold_until_resynced(connection, dataset)
        rolled, batches = [], 0
        for found in waiting:
            rows = found.head.rows
            rolled += _roll_forward(work, connection, dataset.name, rows, epoch)
            batches += _take_back_batches(connection, dataset, work.tables.view(dataset.name), rows, work.lake)
            take_back_received(work, connection, dataset, rows, complete=complete)
            blocks.settle_postponed(connection, found)
        failpoints.hit("postponed.after_roll_forward")
        if (settled := work.tables.view(dataset.name).settled) is not None:
            table_states.raise_settled(connection, dataset.id, settled)
        below = _take_floor(work, connection, dataset)
        purged = _take_purges(work, connection, dataset, waiting[0].head.rows.lo - 1)
        datasets.forget_counts(connection)
        table_states.clear_trouble(connection, dataset.id)
        sequence.move(connection, last=counter.last, epoch=epoch)
        audit.record(
            connection, Event.DATASET_RESYNCED, dataset=dataset.name, ranges=[str(b.head.rows) for b in waiting],
            epoch=epoch, rolled_forward=[str(r) for r in rolled], batches=batches, sinks_below_the_floor=below,
            sinks_below_a_purge=purged,
        )  # fmt: skip
    failpoints.hit("postponed.after_commit")


def _register(connection: Connection, views: dict[str, TableView]) -> list[str]:
    """Adds datasets that were created after the copy was made; one whose table was created anew replaces the old."""
    added = []
    for name, view in views.items():
        known = datasets.find(connection, name)
        if known is not None and known.table_uuid == view.uuid:
            continue
        if known is not None:
            datasets.mark_dropped(connection, known.id)
        datasets.add(
            connection,
            name=name,
            table_uuid=view.uuid,
            deliver_by=tuple(json.loads(view.properties.get(DELIVER_BY_PROPERTY, "[]"))),
            adopted=view.properties.get(ADOPTED_PROPERTY) == "true",
            history=History(view.properties.get(HISTORY_PROPERTY, History.DELIVER.value)),
        )
        added.append(name)
    return added


def _roll_forward(
    work: IngestContext, connection: Connection, name: str, gap: SeqRange | None, epoch: int
) -> list[SeqRange]:
    """Publishes complete branches in the gap: they were staged, perhaps past their commit point. Of one batch only the
    branch with the highest number: a lower one was abandoned before the higher one was reserved."""
    view = work.tables.view(name)
    dataset = datasets.get(connection, name)
    newest: dict[str, tuple[WapId, SnapshotId]] = {}
    for branch, head in view.branches.items():
        wap = view.snapshots[head].block_of(work.lake) if head in view.snapshots else None
        lo = int(branch.removeprefix(BRANCH_PREFIX))
        if wap is None or gap is None or lo not in gap or wap.rows.lo != lo:
            continue
        if wap.batch_id not in newest or newest[wap.batch_id][0].rows.lo < lo:
            newest[wap.batch_id] = (wap, head)
    for name_of_part in list(newest):  # a part has a branch, so the batch that it is a part of was abandoned before
        for whole in wholes_of(name_of_part):
            newest.pop(whole, None)
    rolled = []
    memory = rollback.recall(connection, dataset)
    may_move_tag = rollback.may_move_tag(connection, work.tables, dataset, memory)
    passed = work.sinks.highest_delivered(connection, dataset) if newest else None
    for wap, head in sorted(newest.values(), key=lambda x: x[0].rows.lo):
        known = blocks.of_batch(connection, dataset.id, wap.batch_id)
        if isinstance(known, Published) or batch_elsewhere(view, wap) is not None:
            continue
        if passed is not None and wap.rows.lo <= passed:
            continue  # it was abandoned before a sink passed it, and would never be delivered there
        if not branch_complete(work, name, view, head, wap):
            continue
        outcome = work.tables.publish(
            name, f"{BRANCH_PREFIX}{wap.rows.lo}", head, wap, epoch=epoch, may_move_tag=may_move_tag
        )
        if isinstance(outcome, AlreadyPublished):
            rolled.append(wap.rows)
    # The remaining branches must never be committed, by anybody: the seal is about to pass their numbers.
    for branch in work.tables.view(name).branches:
        if gap is not None and int(branch.removeprefix(BRANCH_PREFIX)) in gap:
            work.tables.remove_branch(name, branch)
    return rolled


def _take_back_batches(connection: Connection, dataset: Dataset, view: TableView, gap: SeqRange, lake: str) -> int:
    """Records the batches in the retained history, so that offering one of them again is still a repeat."""
    taken = 0
    for snapshot in view.ancestors(view.main):
        wap = snapshot.block_of(lake)
        if wap is None or wap.rows.lo not in gap:
            continue
        known = blocks.of_batch(connection, dataset.id, wap.batch_id)
        if isinstance(known, Reserved):
            blocks.forget_reserved(connection, known, f"its batch is in main under {wap.rows}")
        ended_batches.divide_again(connection, dataset.id, wap.batch_id)
        taken += blocks.insert_published(
            connection,
            dataset.id,
            wap.rows,
            kind=BlockKind.BATCH,
            batch_id=wap.batch_id,
            digest=wap.digest,
            row_count=len(wap.rows),
            snapshot=snapshot.id,
        )
    return taken
