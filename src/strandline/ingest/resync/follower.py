"""The resync of a follower, whose ledger is behind its witness.

It forgets nothing and takes nothing back: the leader has all of it, and offers it again. Until then it is unknown how
far the follower had come, so its datasets have no seal. Their epoch is raised, so that no other copy of the ledger can
publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strandline.core import failpoints
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset, Seq
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.ingest.context import IngestContext
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
    take_back: Callable[[Dataset], object],
) -> None:
    """Raises the epoch of ledger and tables. In the caller's transaction, under the counter's lock; can be repeated.
    `views` are our tables that can be read; `take_back` takes a dataset's floor and purges from its table."""
    # One number more: another copy of this ledger with the same counter must notice, too.
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
            take_back(dataset)
        if highest:
            following.fall_behind(connection, dataset.id, Seq(highest))
            behind.append(dataset.name)
    datasets.forget_counts(connection)
    fenced = restored_blocks.fence_open_blocks(connection)  # those of its own, of a site that led before
    opened = following.open_again(connection, epoch)
    failpoints.hit("behind.before_commit")
    work.witness.raise_to(last, expected=highest)
    sequence.move(connection, last=last, epoch=epoch)
    audit.record(
        connection, Event.FOLLOWER_BEHIND, counter=counter.last, witness=highest, epoch=epoch, fenced=fenced,
        opened_again=opened, without_seal=behind,
    )  # fmt: skip
