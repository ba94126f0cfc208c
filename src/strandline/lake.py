"""A lake as programs use it: datasets, rows in, rows out, reads, status. `lake_parts` puts the parts together."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core import failpoints
from strandline.core.actor import Trigger
from strandline.core.errors import UsageError
from strandline.core.records.audit_events import Event
from strandline.core.settings.lake_config import find_config, load_config
from strandline.core.types import Dataset, History, NumberedRows, Seq
from strandline.iceberg.metadata.identifier import full_name
from strandline.iceberg.metadata.metadata_peek import check_catalog_file
from strandline.lake_parts import LakeParts
from strandline.ledger import audit
from strandline.ledger.ingest import blocks, datasets, published_blocks, table_states
from strandline.ledger.replicate import sites
from strandline.read.seal import SealedWatermark
from strandline.status import report as status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.apply.facade import Declarations
    from strandline.core.records.reconcile_records import ReconcileRun
    from strandline.deliver.tick import TickReport
    from strandline.iceberg.pyiceberg.schema import TableDescription
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.columns import Column
    from strandline.ingest.append import Appended, AppendProgress
    from strandline.ingest.datasets import DatasetAdmin
    from strandline.ingest.ingest_files import FileBytes, FileOutcome, FileProgress
    from strandline.ingest.recover import Recovered
    from strandline.read.consumers import Consumers
    from strandline.read.request import Lines, ReadRequest
    from strandline.read.scan import Rows


def open_lake(path: str | Path | None = None) -> Lake:
    """The lake of a settings file, or of a folder that has one; by default this folder's."""
    failpoints.arm_from(os.environ)
    lake = Lake(load_config(find_config(path, os.environ, Path.cwd())))
    lake.open()
    return lake


class Lake(LakeParts):
    """What a program does with a lake."""

    # Datasets.

    def dataset(self, name: str) -> Dataset:
        return self.ledger.query(datasets.get, full_name(name))

    def datasets(self) -> list[Dataset]:
        return self.ledger.query(datasets.list_datasets)

    def create_dataset(
        self,
        name: str,
        columns: Sequence[Column],
        *,
        deliver_by: Sequence[str] = (),
        partition_by: str | None = None,
        shards: int = 1,
    ) -> Dataset:
        self.ledger.query(sites.check_leads)
        return self._datasets.create(
            full_name(name), columns, deliver_by=deliver_by, partition_by=partition_by, shards=shards
        )

    def alter_dataset(self, name: str, alterations: Sequence[Alteration], *, dry_run: bool = False) -> TableDescription:
        """Commits all alterations at once, and returns the table with them. A dry run makes the same checks and changes
        nothing."""
        self.ledger.query(sites.check_leads)
        change = self._datasets.preview_alter if dry_run else self._datasets.alter
        return change(self.dataset(name), alterations)

    def drop_dataset(self, name: str, *, dry_run: bool = False) -> Dataset:
        """Removes the dataset from catalog and ledger; its files stay, and its sequence numbers are not used again. A
        dry run makes the same checks and changes nothing. A site that follows drops only datasets that its leader does
        not have."""
        found = self.ledger.query(datasets.find, full_name(name))
        if found is None or not self.ledger.query(sites.is_only_here, found.id):
            self.ledger.query(sites.check_leads)
        dataset = self.dataset(name)
        if dry_run:
            self._datasets.check_drop(dataset)
        else:
            self._datasets.drop(dataset)
        return dataset

    @property
    def _datasets(self) -> DatasetAdmin:
        from strandline.ingest.datasets import DatasetAdmin
        from strandline.receive.spool import open_spool

        return DatasetAdmin(self.id, self.ledger, self.catalog, open_spool(self.config))

    def adopt_dataset(
        self,
        name: str,
        *,
        history: History | None = None,
        deliver_by: Sequence[str] | None = None,
        leave_foreign: bool = False,
        on_step: Callable[[int, int], None] | None = None,
    ) -> NumberedRows:
        """Makes a dataset of an existing table, and numbers its rows. A repeated call numbers rows that came since.

        None means as recorded; for a new dataset, all history is delivered, in one partition. Rows with a sequence
        number from before stay foreign: this raises RefusedError unless `leave_foreign` is set. `on_step` gets how many
        rows have a number now, and of how many at most.
        """
        from strandline.ingest.register_table import AdoptTerms, register

        self.ledger.query(sites.check_leads)
        name = full_name(name)
        known = register(self.ledger, self.open_tables, self.id, name, AdoptTerms(history, deliver_by, leave_foreign))
        self._watches.forget(name)
        self.recover()
        return self.ingestion.number(known, on_step)

    # Ways in.

    def append(
        self,
        dataset: str,
        df: DataFrame,
        *,
        batch_id: str | None = None,
        shard: int | None = None,
        progress: AppendProgress = lambda step, rows: None,
    ) -> Appended:
        """Appends all rows of the frame once, however often the batch id is used. Returns when they are published.

        Followers apply different shards concurrently. `shard` is one that `dataset show` lists; without it, the batch
        id decides."""
        return self.ingestion.append(dataset, df, batch_id, shard=shard, progress=progress)

    def ingest(
        self,
        dataset: str,
        paths: Sequence[str | Path],
        *,
        batch_id: str | None = None,
        strict: bool = False,
        again: bool = False,
        format: str | None = None,
        rejects_folder: Path | None = None,
        progress: FileProgress | None = None,
        on_done: Callable[[FileOutcome], None] | None = None,
        on_bytes: FileBytes | None = None,
    ) -> list[FileOutcome]:
        """Ingests files: each as a batch, or all of them as one batch with an id. Returns the outcome of each. If Spark
        must start, settles the blocks of dead writers first."""
        from strandline.ingest.ingest_files import IngestOptions

        rejects = self.config.home / "rejects" if rejects_folder is None else rejects_folder
        return self.ingestion.ingest(
            dataset,
            [Path(p) for p in paths],
            IngestOptions(
                batch_id, again, strict, format, rejects, self.config.settings.ingest.files_at_once_max,
                progress or (lambda path, step, rows: None), on_done or (lambda outcome: None), on_bytes,
            ),
        )  # fmt: skip

    def stream_writer(self, dataset: str) -> Callable[[DataFrame, int], None]:
        """A writer for `writeStream.foreachBatch`: exactly once per (query, epoch), however often Spark repeats an
        epoch, even if it computes other rows then."""
        target = self.dataset(dataset).name

        def write(df: DataFrame, epoch: int) -> None:
            query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            if query is None:
                raise UsageError("a stream writer is called by foreachBatch only", hint="Use lake.append for a batch.")
            self.ingestion.append(target, df, f"stream-{query}-{epoch}", same_content=False)

        return write

    def recover(self) -> Recovered:
        """Settles the blocks of dead writers; resyncs the ledger first if it is behind its witness."""
        return self.ingestion.recover(now=True)

    # Ways out.

    @cached_property
    def declarations(self) -> Declarations:
        """Applies declarations to this lake, and exports the lake as one."""
        from strandline.apply.facade import Declarations

        return Declarations(self)

    def reconcile(self, *, act: bool = False, delete: bool = False, accept_loss: bool = False) -> ReconcileRun:
        """One run; without `act` it only reports."""
        from strandline.core.records.reconcile_records import Asked

        return self.reconciler.run(Asked(act, delete, accept_loss))

    def tick(self, sink: str | None = None) -> TickReport:
        """One pass over all sinks, or over one."""
        return self.delivery.tick(sink)

    # Seal and read.

    def sealed(self, dataset: str) -> Seq | None:
        target = self.dataset(dataset)
        return self.ledger.query(blocks.sealed, target.id)

    def allocated(self, dataset: Dataset) -> Seq | None:
        """The highest sequence number that was ever given to the dataset."""
        return self.ledger.query(blocks.highest, dataset.id)

    def watch(self, dataset: str) -> SealedWatermark:
        """One watch per dataset and process."""
        return self._watches.watch(self.dataset(dataset))

    def read_since(
        self,
        dataset: str,
        continuation: str | None = None,
        *,
        until: int | None = None,
        partition: str | Mapping[str, str | None] | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        internal: bool = False,
    ) -> Rows:
        """The settled rows after a token, or from the beginning, and the token to continue with."""
        from strandline.read.request import read_request

        wanted = read_request(continuation, until, partition, columns, limit, internal)
        self.ingestion.catch_up()
        return self._rows(self.dataset(dataset), wanted)

    def read_lines(
        self,
        dataset: str,
        continuation: str | None = None,
        *,
        until: int | None = None,
        partition: str | Mapping[str, str | None] | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        internal: bool = False,
    ) -> Lines:
        """The rows of `read_since` as JSON lines. Reads a few rows directly from the files, without Spark."""
        from strandline.read.read_files import read_from_files
        from strandline.read.request import read_request

        wanted = read_request(continuation, until, partition, columns, limit, internal)
        self.ingestion.catch_up()
        target = self.dataset(dataset)
        found = read_from_files(self.config, self.ledger, self.open_tables, self.id, target, wanted)
        return self._rows(target, wanted) if found is None else found

    def _rows(self, target: Dataset, wanted: ReadRequest) -> Rows:
        from strandline.read.request import bounds

        bounds(self.ledger, self.id, target, wanted)  # raises for a bad request before Spark starts
        from strandline.read.scan import read_rows

        return read_rows(self.config, self.ledger, self.id, self.work.tables, target, wanted)

    @cached_property
    def consumers(self) -> Consumers:
        """Consumers: readers with a name, for which retention keeps rows."""
        from strandline.read.consumers import Consumers

        return Consumers(self.id, self.ledger)

    # The ledger itself.

    def status(self) -> status.LakeStatus:
        return status.load_status(self.config, self.ledger, self.witness, self._glances)

    def check_catalog(self) -> None:
        """Raises StrandlineError unless the catalog of the datasets answers. Starts no JVM."""
        if self.config.settings.catalog.kind != "sqlite":
            self.catalog.ping()
        elif self.ledger.query(datasets.has_any):  # the first dataset makes the file
            check_catalog_file(self.config)

    def audit_events(
        self,
        events_max: int,
        *,
        before: int | None = None,
        actor: str | None = None,
        trigger: Trigger | None = None,
        events: Collection[Event] | None = None,
    ) -> list[audit.AuditEvent]:
        """Newest first; `before` is the id of the last event of the previous page."""
        with self.ledger.read() as connection:
            return audit.latest(
                connection, events_max=events_max, before=before, actor=actor, trigger=trigger, events=events
            )

    def accept_table(self, name: str, reason: str) -> None:
        """Accepts a table that lacks published rows, by a person's decision: it was rolled back on purpose."""
        from strandline.iceberg.spark.settled_tag import accept

        dataset = self.dataset(name)
        anchor = accept(self.tables(), dataset.name)  # the table first: a crash in between leaves it refused
        with self.ledger.write() as connection:
            table_states.accept(connection, dataset.id, anchor)
            forgotten = published_blocks.forget_snapshots(connection, dataset.id)
            datasets.forget_counts(connection)
            audit.record(connection, Event.TABLE_ACCEPTED, dataset=dataset.name, reason=reason, blocks=forgotten)
