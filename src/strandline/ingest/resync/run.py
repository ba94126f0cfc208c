"""The resync: a ledger that is behind its witness learns from the tables what has happened since its copy was made.

It first reads all tables without a lock, to find those that cannot be read, because that may take long. The rest runs
under the counter's lock, so no process reserves a sequence number meanwhile. Each step can be repeated: after a crash,
witness and counter still differ, and the next resync begins again. It raises the epoch of the tables first, so that
another live copy of the ledger can no longer publish.

A dataset whose table cannot be read is postponed. An open block over the sequence numbers in question holds its seal,
and its rows are not ingested, read or delivered until `postponed.py` has resynced it (docs/adr/0041).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strandline.core import failpoints
from strandline.core.calling_off import check_not_called_off
from strandline.core.errors import NoSuchDataset, ResyncNeeded
from strandline.core.records.audit_events import Event
from strandline.core.retry import RetryPolicy
from strandline.core.types import BlockKind, Dataset, History, Reserved, Seq, SeqRange
from strandline.iceberg.metadata.dataset_identity import DatasetIdentity
from strandline.iceberg.metadata.table_metadata import (
    ADOPTED_PROPERTY,
    DELIVER_BY_PROPERTY,
    HISTORY_PROPERTY,
    LAKE_PROPERTY,
    TableView,
)
from strandline.iceberg.spark.java_errors import explain
from strandline.ingest.context import IngestContext
from strandline.ingest.datasets import unused_identity
from strandline.ingest.resync.blocks import restore_batches, roll_forward
from strandline.ingest.resync.cuts import numbers_left, restore_cuts
from strandline.ingest.resync.floor import restore_floor, restore_purges
from strandline.ingest.resync.follower import fall_behind
from strandline.ingest.resync.received import history_reaches_copy, hold_until_resynced, restore_received
from strandline.ingest.table_peek import read_view
from strandline.ledger import audit
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import datasets, purge_items, restored_blocks, sequence, table_states
from strandline.ledger.replicate import followers, promotions, sites

T = TypeVar("T")


_BEHIND = RetryPolicy(0.0, attempts_max=4)


@dataclass(frozen=True, slots=True)
class Resynced:
    gap: SeqRange | None  # the sequence numbers that the ledger did not know; None if it was not behind its witness
    epoch: int
    rolled_forward: tuple[SeqRange, ...]
    batches: int
    datasets_found: tuple[str, ...]
    # followers that only the tables name; retention keeps all rows for them until they are added again
    followers_forgotten: tuple[str, ...] = ()


def with_resync(work: IngestContext, step: Callable[[], T]) -> T:
    """Runs `step`. If the ledger needs a resync first, resyncs it and runs `step` again."""
    return _BEHIND.call(step, ResyncNeeded, lambda: resync_ledger(work))


def resync_ledger(work: IngestContext, *, rebuild: bool = False) -> Resynced | None:
    """Resyncs the ledger. None if witness and counter agree, as they nearly always do. Raises LedgerUnreadable if
    witness and ledger disagree whether the site follows or leads."""
    unreadable: Mapping[str, Exception] | None = None
    while True:
        with work.ledger.write() as connection:
            counter = sequence.lock(connection)
            witnessed = work.witness.read()
            witnessed.check_lake(counter.lake)
            if witnessed.highest == counter.last and not rebuild:
                return None
            promotions.check_none_under_way(connection, witnessed)
            site = sites.get(connection)
            # Since it was opened, the ledger may have been restored from a copy of before the site followed, or led.
            witnessed.check_follows(site.follows)
            witnessed.check_leads(site.follows, site.claimed_term)
            if not site.follows:
                sites.raise_term(connection, witnessed.term)  # a copy from before a take-over, or a new ledger
            if unreadable is not None:
                resynced = _resync_locked(work, connection, counter, witnessed.highest, unreadable, rebuild=rebuild)
                follows = sites.get(connection).follows
                break
        # Outside of the lock, because Iceberg may try for a minute and a half. Unreadable datasets are postponed, even
        # if they can be read a moment later. The resync reads the tables again under the lock.
        _, unreadable = _read_tables(work, {})
    if follows:
        failpoints.hit("behind.after_commit")
    else:
        failpoints.hit("resync.after_commit")
    return resynced


def _read_tables(
    work: IngestContext, known_unreadable: Mapping[str, Exception]
) -> tuple[dict[str, TableView], dict[str, Exception]]:
    """The tables of the catalog, and the errors of those that cannot be read. Those in `known_unreadable` are not read
    again."""
    views: dict[str, TableView] = {}
    unreadable: dict[str, Exception] = {}
    for name in work.tables.names():
        check_not_called_off()
        try:
            if name in known_unreadable:
                raise known_unreadable[name]
            views[name] = read_view(work, name)
        except NoSuchDataset:
            continue  # dropped since it was listed
        except failpoints.FailpointError:
            raise
        except Exception as e:  # a damaged table may raise anything
            check_not_called_off()  # a cancelled job is not a failure of the table
            unreadable[name] = e
    return views, unreadable


def _resync_locked(
    work: IngestContext,
    connection: Connection,
    counter: sequence.Counter,
    highest: int,
    known_unreadable: Mapping[str, Exception],
    *,
    rebuild: bool,
) -> Resynced:
    gap = SeqRange(Seq(counter.last + 1), Seq(highest)) if highest > counter.last else None
    # One number more, so that another copy of this ledger with the same counter also notices it.
    last = max(highest, counter.last) + 1
    recorded, postponed = datasets.list_datasets(connection), restored_blocks.postponed(connection)
    views, unreadable = _own_tables(work, recorded, postponed, known_unreadable)
    epoch = max([counter.epoch, *(v.epoch for v in views.values())]) + 1
    if sites.get(connection).follows:
        fall_behind(work, connection, counter, highest, epoch, views)
        return Resynced(gap, epoch, (), 0, ())
    added = _register(connection, views)
    named = sorted({name for view in views.values() for name in view.followers})
    forgotten = [name for name in named if followers.add_forgotten(connection, name)]
    failpoints.hit("resync.before_epoch")
    for name in views:
        identity = DatasetIdentity.of(datasets.get(connection, name))
        work.tables.raise_epoch(name, epoch, identity.to_properties())
    failpoints.hit("resync.after_epoch")
    rolled = [r for name in views for r in roll_forward(work, connection, name, gap, epoch)]
    failpoints.hit("resync.after_roll_forward")
    batches, on_hold = _restore_batches_and_cuts(work, connection, views, gap, Seq(last), epoch)
    readable = sorted((d for d in datasets.list_datasets(connection) if d.name in views), key=lambda d: d.id)
    below = [s for d in readable for s in restore_floor(work, connection, d)]
    purged: list[str] = []
    for dataset in readable:
        lacking, purges = restore_purges(work, connection, dataset, counter.last)
        purged += lacking
        for ranges in purges:  # offered to followers again, because it is unknown whether they got them before
            last += 1
            purge_items.insert(connection, dataset.id, Seq(last), ranges)
    for dataset in (d for d in datasets.list_datasets(connection) if d.name in unreadable):
        rows = SeqRange(Seq(counter.last + 1), Seq(last))
        restored_blocks.postpone(connection, dataset.id, rows, f"recovered-{epoch}-{rows.lo}-{rows.hi}")
        table_states.record_trouble(connection, dataset.id, unreadable[dataset.name])
        hold_until_resynced(connection, dataset)
    datasets.forget_counts(connection)
    fenced = restored_blocks.fence_open_blocks(connection)
    sinks.forget_leases(connection)
    failpoints.hit("resync.before_commit")
    work.witness.raise_to(last, expected=highest)
    sequence.move(connection, last=last, epoch=epoch)
    event = Event.LEDGER_REBUILT if rebuild else Event.LEDGER_RESYNCED
    audit.record(
        connection, event, counter=counter.last, witness=highest, epoch=epoch, rolled_forward=[str(r) for r in rolled],
        batches=batches, fenced=fenced, datasets_found=added, unreadable=sorted(unreadable),
        sinks_below_the_floor=below, sinks_below_a_purge=purged, receivers_on_hold=on_hold,
        followers_forgotten=forgotten,
    )  # fmt: skip
    return Resynced(gap, epoch, tuple(rolled), batches, tuple(added), tuple(forgotten))


def _restore_batches_and_cuts(
    work: IngestContext,
    connection: Connection,
    views: Mapping[str, TableView],
    gap: SeqRange | None,
    last: Seq,
    epoch: int,
) -> tuple[int, dict[str, str]]:
    """Records the batches, cuts and received bodies that the tables have in the gap. Returns how many batches it
    recorded, and the datasets whose receivers are on hold, with the reason. `last` is the sequence number that the
    resync takes."""
    batches = 0
    on_hold: dict[str, str] = {}
    for dataset in datasets.list_datasets(connection):
        if dataset.name in views and gap is not None:
            view = work.tables.view(dataset.name)
            is_complete = history_reaches_copy(connection, dataset, view)
            batches += restore_batches(connection, dataset, view, gap, work.lake)
            if (why := restore_received(work, connection, dataset, gap, is_complete=is_complete)) is not None:
                on_hold[dataset.name] = why
            # The range ends with the number that the resync takes, which is above all followers' bounds. So each
            # follower gets an item of it, and a follower that was at the witness does not stay behind our seal.
            cuts = restore_cuts(work, connection, dataset, gap)
            for rows in numbers_left(SeqRange(gap.lo, last), cuts):
                name = f"recovered-{epoch}-{rows.lo}-{rows.hi}"
                restored_blocks.insert_published(connection, dataset.id, rows, kind=BlockKind.RECOVERED, batch_id=name)
        if dataset.name in views and (settled := work.tables.view(dataset.name).settled) is not None:
            table_states.raise_settled(connection, dataset.id, settled)  # the table is newer than the ledger's copy
    return batches, on_hold


def _own_tables(
    work: IngestContext,
    recorded: Sequence[Dataset],
    postponed: Sequence[Reserved],
    known_unreadable: Mapping[str, Exception],
) -> tuple[dict[str, TableView], dict[str, str]]:
    """All tables of the catalog that name this lake, also those that the ledger does not know. And the tables that
    cannot be read or were postponed before, each with the reason. If no dataset can be read, storage is unavailable:
    then raises the error of the first one."""
    ours = {d.name for d in recorded}
    waiting = {d.name for d in recorded if d.id in {b.head.dataset for b in postponed}}
    # Only tables of recorded datasets can be postponed.
    tables, failed = _read_tables(work, {name: e for name, e in known_unreadable.items() if name in ours})
    own = {name: view for name, view in tables.items() if view.properties.get(LAKE_PROPERTY) == work.lake}
    unreadable = {name: explain(e, "it cannot be read").message for name, e in failed.items()}
    # The ranges of a dataset are resynced one after the other, the lowest first.
    unreadable |= {name: "lower sequence numbers of it must be resynced first" for name in own if name in waiting}
    views = {name: view for name, view in own.items() if name not in waiting}
    failure = next((e for name, e in failed.items() if name in ours), None)
    if failure is not None and not views:
        raise failure
    return views, unreadable


def _register(connection: Connection, views: dict[str, TableView]) -> list[str]:
    """Adds the datasets that were created after the copy was made. A dataset whose table was created again replaces the
    old one. Returns the names of the added datasets."""
    added = []
    for name, view in views.items():
        recorded = datasets.find(connection, name)
        if recorded is not None and recorded.table_uuid == view.uuid:
            continue
        if recorded is not None:
            datasets.mark_dropped(connection, recorded.id)
        identity = unused_identity(connection, DatasetIdentity.parse(view.properties, view.uuid))
        datasets.add(
            connection,
            name=name,
            table_uuid=view.uuid,
            uuid=identity.uuid,
            first_shard=identity.first_shard,
            shards=identity.shards,
            deliver_by=tuple(json.loads(view.properties.get(DELIVER_BY_PROPERTY, "[]"))),
            adopted=view.properties.get(ADOPTED_PROPERTY) == "true",
            history=History(view.properties.get(HISTORY_PROPERTY, History.DELIVER.value)),
        )
        added.append(name)
    return added
