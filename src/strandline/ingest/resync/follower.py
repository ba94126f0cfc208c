"""The resync of a follower, whose ledger is behind its witness.

It does not read batches from the tables, because the leader offers them again. Until then it is unknown how far the
follower was, so its datasets have no seal. Their epoch is raised, so that no other copy of the ledger can publish.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.core import failpoints
from strandline.core.records.audit_events import Event
from strandline.core.types import Seq
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.ingest.context import IngestContext
from strandline.ingest.resync.floor import restore_floor, restore_purges
from strandline.ledger import audit
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import datasets, restored_blocks, sequence, table_states
from strandline.ledger.replicate import following


def fall_behind(
    work: IngestContext,
    connection: Connection,
    counter: sequence.Counter,
    highest: int,
    epoch: int,
    views: Mapping[str, TableView],
) -> None:
    """Raises the epoch of ledger and tables, and records the tables' floors and purges. Runs in the caller's
    transaction, under the counter's lock. It can be repeated. `views` are our tables that can be read."""
    # One number more, so that another copy of this ledger with the same counter also notices it.
    last = max(highest, counter.last) + 1
    failpoints.hit("behind.before_epoch")
    for name in views:
        work.tables.raise_epoch(name, epoch)
    failpoints.hit("behind.after_epoch")
    behind = []
    for dataset in sorted(datasets.list_datasets(connection), key=lambda d: d.id):
        if dataset.name in views:
            if (settled := work.tables.view(dataset.name).settled) is not None:
                table_states.raise_settled(connection, dataset.id, settled)
            restore_floor(work, connection, dataset)
            restore_purges(work, connection, dataset, counter.last)
        if highest:
            following.fall_behind(connection, dataset.id, Seq(highest))
            behind.append(dataset.name)
    datasets.forget_counts(connection)
    fenced = restored_blocks.fence_open_blocks(connection)  # from when this site led
    opened_again = following.open_again(connection, epoch)
    failpoints.hit("behind.before_commit")
    work.witness.raise_to(last, expected=highest)
    sequence.move(connection, last=last, epoch=epoch)
    audit.record(
        connection, Event.FOLLOWER_BEHIND, counter=counter.last, witness=highest, epoch=epoch, fenced=fenced,
        opened_again=opened_again, without_seal=behind,
    )  # fmt: skip
