"""Creates, alters and drops datasets. A dataset is a table in the catalog and a row in the ledger, which are changed in
an order that survives a crash between the two. No JVM is needed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from strandline.core import failpoints
from strandline.core.errors import NoSuchDataset, RefusedError, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import SHARDS_MAX
from strandline.core.text.wording import plural
from strandline.core.types import BlockKind, Dataset, DatasetUuid
from strandline.ledger import applied_settings, audit
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.receive import receive_report, spool_files
from strandline.ledger.replicate import followers, sites

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from strandline.iceberg.metadata.dataset_identity import DatasetIdentity
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.pyiceberg.schema import TableDescription
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.columns import Column


class SpooledBodies(Protocol):
    """The bodies in a receiver's spool. `receive/spool.Spool` implements it."""

    def bodies(self, table_uuid: str) -> Sequence[tuple[str, datetime]]:
        """The names of a table's bodies, and when they were written. Bodies that the ledger does not know are
        included."""


@dataclass(frozen=True)
class DatasetAdmin:
    lake_id: str
    ledger: Ledger
    catalog: PyIcebergCatalog
    spool: SpooledBodies

    def create(
        self,
        name: str,
        columns: Sequence[Column],
        *,
        deliver_by: Sequence[str],
        partition_by: str | None,
        shards: int = 1,
    ) -> Dataset:
        """Creates the table first, then the ledger's row. After a crash in between, `_table_of_crashed_create` finds
        the table."""
        from strandline.iceberg.metadata.dataset_identity import DatasetIdentity
        from strandline.iceberg.metadata.table_metadata import followed_properties

        if not 1 <= shards <= SHARDS_MAX:
            raise UsageError(f"a dataset has 1 to {SHARDS_MAX} shards, not {shards}")
        with self.ledger.read() as connection:
            if datasets.find(connection, name) is not None:
                raise RefusedError(f"a dataset named {name} exists already")
            epoch, first = sequence.read(connection).epoch, datasets.next_shard(connection)
            following = [f.name for f in followers.of_name(connection, name)]
        if (table := self._table_of_crashed_create(name, columns, deliver_by, shards)) is None:
            identity = DatasetIdentity(DatasetUuid(str(uuid.uuid4())), first, shards)
            table = self.catalog.create_dataset_table(
                name, columns, lake_id=self.lake_id, epoch=epoch, deliver_by=deliver_by, partition_by=partition_by,
                properties=identity.to_properties() | (followed_properties(following) if following else {}),
            )  # fmt: skip
        failpoints.hit("create.after_table")
        table_uuid = str(table.metadata.table_uuid)
        identity = DatasetIdentity.parse(table.properties, table_uuid)
        with self.ledger.write() as connection:
            audit.record(connection, Event.DATASET_CREATED, dataset=name, table=table_uuid, deliver_by=list(deliver_by))
            own = unused_identity(connection, identity)
            dataset = datasets.add(
                connection, name=name, table_uuid=table_uuid, deliver_by=tuple(deliver_by), uuid=own.uuid,
                first_shard=own.first_shard, shards=shards,
            )  # fmt: skip
        if own != identity:
            self.catalog.set_properties(name, own.to_properties())
        return dataset

    def _table_of_crashed_create(
        self, name: str, columns: Sequence[Column], deliver_by: Sequence[str], shards: int
    ) -> Table | None:
        """The table of a `create` that died before it wrote to the ledger, if it has the same columns and is empty."""
        from strandline.iceberg.metadata.dataset_identity import DatasetIdentity
        from strandline.iceberg.metadata.table_metadata import DELIVER_BY_PROPERTY, LAKE_PROPERTY
        from strandline.iceberg.pyiceberg.schema import user_columns

        if not self.catalog.exists(name):
            return None
        table = self.catalog.load(name)
        is_same = user_columns(table.schema()) == tuple(columns)
        is_same = is_same and table.properties.get(DELIVER_BY_PROPERTY) == json.dumps(list(deliver_by))
        identity = DatasetIdentity.parse(table.properties, str(table.metadata.table_uuid))
        is_same = is_same and identity.shards == shards
        if table.properties.get(LAKE_PROPERTY) == self.lake_id and table.current_snapshot() is None and is_same:
            return table
        return None

    def alter(self, dataset: Dataset, alterations: Sequence[Alteration]) -> TableDescription:
        """Alters the table, and returns it as it is then."""
        from strandline.iceberg.pyiceberg.schema import describe
        from strandline.iceberg.schema.alteration import alteration_text

        altered, changes = self.catalog.alter(dataset.name, alterations), [alteration_text(a) for a in alterations]
        with self.ledger.write() as connection:
            audit.record(connection, Event.DATASET_ALTERED, dataset=dataset.name, changes=changes)
        return describe(altered)

    def preview_alter(self, dataset: Dataset, alterations: Sequence[Alteration]) -> TableDescription:
        """The table as `alter` would leave it. Changes nothing."""
        return self.catalog.preview_alter(dataset.name, alterations)

    def check_drop(self, dataset: Dataset) -> None:
        """Makes the checks of `drop`. Changes nothing."""
        if self._is_only_here(dataset):
            return
        spooled = [name for name, _ in self.spool.bodies(dataset.table_uuid)]
        with self.ledger.read() as connection:
            _check_unused(connection, dataset)
            _check_recorded(connection, dataset, spooled)

    def drop(self, dataset: Dataset) -> None:
        """Removes the dataset from catalog and ledger. Its files stay, and its sequence numbers are not used again. The
        dataset is marked first, so that a change after the checks is refused. The table is dropped inside the
        transaction, so that a drop that died can be repeated."""
        if self._is_only_here(dataset):
            self._drop_only_here(dataset)
            return
        # The spool is listed before the ledger is locked. A body that comes later is recorded before it is answered, or
        # it is refused.
        spooled = [name for name, _ in self.spool.bodies(dataset.table_uuid)]
        with self.ledger.write() as connection:
            if not datasets.mark_dropped(connection, dataset.id):
                raise NoSuchDataset(f"{dataset.name} was dropped meanwhile")
            _check_unused(connection, dataset)
            _check_recorded(connection, dataset, spooled)
            self._forget(connection, dataset)

    def _forget(self, connection: Connection, dataset: Dataset) -> None:
        applied_settings.forget_dataset(connection, dataset.name)
        audit.record(connection, Event.DATASET_DROPPED, dataset=dataset.name, table=dataset.table_uuid)
        if self.catalog.exists(dataset.name):
            self.catalog.drop(dataset.name)

    def _is_only_here(self, dataset: Dataset) -> bool:
        return self.ledger.query(sites.is_only_here, dataset.id)

    def _drop_only_here(self, dataset: Dataset) -> None:
        """Drops a dataset that only this site has. Its open blocks and sinks do not matter, and `rejoin` has copied its
        bodies to files."""
        with self.ledger.write() as connection:
            if not sites.is_only_here(connection, dataset.id):
                raise RefusedError(f"{dataset.name} is now replicated from the leader")
            if not datasets.mark_dropped(connection, dataset.id):
                raise NoSuchDataset(f"{dataset.name} was dropped meanwhile")
            for sink in sinks.of_dataset(connection, dataset.id):
                sinks.remove(connection, sink.id)
                audit.record(connection, Event.SINK_REMOVED, sink=sink.name, destination=sink.destination)
            self._forget(connection, dataset)


def unused_identity(connection: Connection, recorded: DatasetIdentity) -> DatasetIdentity:
    """The id and shards that a table records. They are replaced if another dataset of the ledger has or had them: it
    took them meanwhile, or the table was copied with its properties. Otherwise they stay, also in a ledger that is
    created again, because followers know the dataset by them."""
    is_taken = datasets.is_known_id(connection, recorded.uuid)
    id = DatasetUuid(str(uuid.uuid4())) if is_taken else recorded.uuid
    first_shard = datasets.free_shard(connection, recorded.first_shard, recorded.shards)
    return replace(recorded, uuid=id, first_shard=first_shard)


def _check_unused(connection: Connection, dataset: Dataset) -> None:
    if fed := sinks.of_dataset(connection, dataset.id):
        raise RefusedError(
            f"{dataset.name} is delivered to {', '.join(s.name for s in fed)}",
            hint="Remove its sinks first: `strandline sink remove NAME`.",
        )
    # A recovered block is no obstacle: a postponed dataset, whose table cannot be read, can be dropped.
    still_open = blocks.open_blocks(connection, dataset.id)
    if still_open := [b for b in still_open if b.head.offered or b.head.kind is not BlockKind.RECOVERED]:
        raise RefusedError(
            f"{dataset.name} has {plural(len(still_open), 'open block')}",
            hint="Wait until they are settled: `strandline status` shows them.",
        )
    waiting = next((w for w in receive_report.report(connection) if w.dataset == dataset.id), None)
    if waiting is not None and waiting.to_ingest.bodies:
        raise RefusedError(
            f"{dataset.name}: {plural(waiting.to_ingest.rows, 'received row', 'waits')} to be ingested",
            hint="Let `strandline receive` ingest them first, and revoke the senders' tokens.",
        )
    if waiting is not None:
        raise RefusedError(
            f"{dataset.name}: {plural(waiting.set_aside.rows, 'received row', 'is')} set aside",
            hint="Discard them first (`strandline spool discard`), or repair the table and replay them.",
        )


def _check_recorded(connection: Connection, dataset: Dataset, spooled: Collection[str]) -> None:
    """Raises RefusedError if the spool has bodies that the ledger does not know. They were acknowledged after the copy
    was made from which the ledger was restored. Once the dataset is dropped, no receiver would record them."""
    if unknown := set(spooled) - spool_files.spooled(connection, spooled):
        raise RefusedError(
            f"{dataset.name}: {plural(len(unknown), 'body', 'is')} in the spool and not in the ledger, and a sender "
            "may have got a 202 for its rows",
            hint="Run `strandline receive` to record and ingest them. `strandline spool list` names bodies that "
            "cannot be recorded, and `strandline spool discard --unrecorded` discards them.",
        )
