"""The resync of datasets whose tables could not be read when the ledger was resynced (docs/adr/0041)."""

from __future__ import annotations

from strandline.core import failpoints
from strandline.core.calling_off import check_not_called_off
from strandline.core.errors import ResyncNeeded
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset
from strandline.iceberg.metadata.table_metadata import check_fit
from strandline.iceberg.spark.java_errors import explain
from strandline.ingest.context import IngestContext
from strandline.ingest.resync.blocks import restore_batches, roll_forward
from strandline.ingest.resync.cuts import restore_cuts
from strandline.ingest.resync.floor import restore_floor, restore_purges
from strandline.ingest.resync.received import end_hold_until_resynced, history_reaches_copy, restore_received
from strandline.ingest.table_peek import read_view
from strandline.ledger import audit
from strandline.ledger.ingest import datasets, purge_items, restored_blocks, sequence, table_states
from strandline.ledger.replicate import followers


def resync_postponed(work: IngestContext) -> list[str]:
    """Resyncs the postponed datasets whose tables can now be read. Returns the others, each with its reason."""
    with work.ledger.read() as connection:
        ids = {b.head.dataset for b in restored_blocks.postponed(connection)}
        postponed = [d for d in datasets.list_datasets(connection) if d.id in ids]
    not_resynced = []
    for dataset in postponed:
        if work.backoff.is_waiting(dataset.id):
            not_resynced.append(f"{dataset.name}: it could not be read a short while ago")
            continue
        started_at = work.backoff.now()
        try:
            read_view(work, dataset.name)  # outside of the lock: Iceberg may try for a minute and a half
            _resync_later(work, dataset)
            work.backoff.succeeded(dataset.id)
        except (ResyncNeeded, failpoints.FailpointError):
            raise
        except Exception as e:
            check_not_called_off()
            work.backoff.failed(dataset.id, started_at)
            reason = explain(e, "it cannot be read").message
            work.ledger.change(table_states.record_trouble, dataset.id, reason)
            not_resynced.append(f"{dataset.name}: {reason}")
    return not_resynced


def _resync_later(work: IngestContext, dataset: Dataset) -> None:
    """Resyncs one dataset over its postponed ranges, in one transaction under the counter's lock. It can be
    repeated."""
    with work.ledger.write() as connection:
        counter = sequence.check(connection, work.witness)
        if not (postponed := restored_blocks.postponed(connection, dataset.id)):
            return  # another process has done it
        view = work.tables.view(dataset.name)
        check_fit(view, dataset, work.lake)
        # If the table's epoch is higher, this ledger is an older copy of the one that raised it.
        epoch = counter.epoch if view.epoch <= counter.epoch else view.epoch + 1
        work.tables.raise_epoch(dataset.name, epoch)
        failpoints.hit("postponed.after_epoch")
        forgotten = [name for name in sorted(view.followers) if followers.add_forgotten(connection, name)]
        is_complete = history_reaches_copy(connection, dataset, view)
        end_hold_until_resynced(connection, dataset)
        rolled, batches = [], 0
        for block in postponed:
            rows = block.head.rows
            rolled += roll_forward(work, connection, dataset.name, rows, epoch)
            batches += restore_batches(connection, dataset, work.tables.view(dataset.name), rows, work.lake)
            restore_received(work, connection, dataset, rows, is_complete=is_complete)
            restore_cuts(work, connection, dataset, rows)
            restored_blocks.settle_postponed(connection, block)
        failpoints.hit("postponed.after_roll_forward")
        if (settled := work.tables.view(dataset.name).settled) is not None:
            table_states.raise_settled(connection, dataset.id, settled)
        below = restore_floor(work, connection, dataset)
        purged, purges = restore_purges(work, connection, dataset, postponed[0].head.rows.lo - 1)
        datasets.forget_counts(connection)
        table_states.clear_trouble(connection, dataset.id)
        numbers = [purge_items.take_number(connection, work.witness, dataset.id, ranges) for ranges in purges]
        sequence.move(connection, last=max([counter.last, *(n or 0 for n in numbers)]), epoch=epoch)
        audit.record(
            connection, Event.DATASET_RESYNCED, dataset=dataset.name, ranges=[str(b.head.rows) for b in postponed],
            epoch=epoch, rolled_forward=[str(r) for r in rolled], batches=batches, sinks_below_the_floor=below,
            sinks_below_a_purge=purged, followers_forgotten=forgotten,
        )  # fmt: skip
    failpoints.hit("postponed.after_commit")
