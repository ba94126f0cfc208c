"""A lake: the one place where the parts are put together.

Opening one is light. Spark starts when something needs it, and the first thing done with it is to resync the
ledger (if the witness says so) and to settle what dead writers left.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core import failpoints
from strandline.core import read_token as tokens
from strandline.core.actor import Trigger
from strandline.core.audit_events import Event
from strandline.core.errors import UsageError, WitnessUnreadable
from strandline.core.settings import LakeConfig, find_config, load_config
from strandline.core.types import Dataset, History, Numbered, Seq
from strandline.iceberg.metadata.identifier import full_name
from strandline.iceberg.metadata.metadata_peek import check_catalog_file
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, datasets, published_blocks, sequence, table_states
from strandline.ledger.replicate import sites
from strandline.ledger.witness import Witness, open_witness
from strandline.read.seal import SealedWatermark, SealWatches
from strandline.status import report as status
from strandline.status.table_glances import TableGlances
from strandline.storage.s3_settings import send_no_trailers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.apply.facade import Declarations
    from strandline.core.reconcile_records import Run
    from strandline.deliver.facade import Delivery
    from strandline.deliver.tick import TickReport
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.schema.alteration import Alteration
    from strandline.iceberg.schema.columns import Column
    from strandline.iceberg.spark.tables import SparkTables
    from strandline.ingest.append import Appended, Progress
    from strandline.ingest.context import IngestContext
    from strandline.ingest.datasets import DatasetCare
    from strandline.ingest.facade import Ingestion
    from strandline.ingest.ingest_files import FileBytes, FileOutcome, FileProgress
    from strandline.ingest.recover import Recovered
    from strandline.jobs.tasks import Tasks
    from strandline.maintain.facade import Maintenance
    from strandline.read.scan import Rows
    from strandline.receive.body.json_lines import ReadLines
    from strandline.receive.facade import Receiver
    from strandline.reconcile.facade import Reconciler
    from strandline.replicate.facade import Replication
    from strandline.replicate.leader import Leader
    from strandline.replicate.manage_followers import Followers


def open_lake(path: str | Path | None = None) -> Lake:
    """The lake of a settings file, or of a folder that has one; by default this folder's."""
    failpoints.arm_from(os.environ)
    lake = Lake(load_config(find_config(path, os.environ, Path.cwd())))
    lake.open()
    return lake


def _read_lines() -> ReadLines:
    from strandline.ingest.sources.body import read_json_lines

    return read_json_lines


class Lake:
    def __init__(self, config: LakeConfig) -> None:
        self.config = config
        send_no_trailers(config.settings.warehouse)  # before the lake has threads that read the environment
        self.ledger = Ledger(config)
        self.witness: Witness = open_witness(config)
        self._glances = TableGlances(config)
        self._watches = SealWatches(self.ledger, poll_seconds=config.settings.seal.poll_seconds)
        self._opening = threading.Lock()
        self.on_start: Callable[[str], None] | None = None
        """Gets what a slow first start does (fetching the runtime, starting Spark)."""

    def open(self) -> None:
        """Check that there is a ledger of this lake that this program understands."""
        self.ledger.open()
        with self.ledger.read() as connection:
            self.id = sequence.read(connection).lake
        if self.config.settings.replication.arbiter is not None:
            self.ledger.write_right = self.replication.lease or self.ledger.write_right
        try:
            mark = self.witness.read()
        except WitnessUnreadable:
            return  # reading goes on; stamping is refused where it happens
        mark.check_lake(self.id)
        site = self.ledger.query(sites.get)
        mark.check_follows(site.follows)
        mark.check_leads(site.follows, site.claimed_term)

    def close(self) -> None:
        if "tasks" in self.__dict__:
            self.tasks.close()
        if "replication" in self.__dict__:
            self.replication.close()
        self._watches.close()
        if "_catalog" in self.__dict__:
            self._catalog.close()
        self.ledger.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # The heavy parts, made when first needed.

    @property
    def spark(self) -> SparkSession:
        """A session of this lake's own; its tables are `lake.<namespace>.<table>`."""
        return self.tables().spark

    def tables(self) -> SparkTables:
        """Iceberg through Spark, without settling anything first."""
        return self.ingestion.unsettled_context.tables

    @property
    def work(self) -> IngestContext:
        """What the stages work with. Before it is used for the first time, what dead writers left is settled."""
        return self.ingestion.context

    def _settled_tables(self) -> SparkTables:
        return self.work.tables

    @property
    def catalog(self) -> PyIcebergCatalog:
        with self._opening:  # threads of a server ask for it at the same time
            return self._catalog

    @cached_property
    def _catalog(self) -> PyIcebergCatalog:
        from strandline.iceberg.pyiceberg.catalog import open_catalog

        return open_catalog(self.config)

    @cached_property
    def ingestion(self) -> Ingestion:
        """Ways in, and recovery."""
        from strandline.ingest.facade import Ingestion

        return Ingestion(self.ledger, self.witness, self._watches, self._start)

    def _start(self) -> IngestContext:
        from strandline.deliver.sink_records import SinkInquiry
        from strandline.iceberg.session.lake_session import open_session
        from strandline.iceberg.spark.tables import SparkTables
        from strandline.ingest.context import IngestContext
        from strandline.ledger.receive.receipts import open_receipts

        settings = self.config.settings.ingest
        session = open_session(self.config, progress=self.on_start)
        tables = SparkTables(session, attempts_max=settings.commit_attempts_max)
        receipts, sinks = open_receipts(self.config), SinkInquiry(self.delivery.context)
        return IngestContext(self.config, self.id, self.ledger, self.witness, tables, settings, receipts, sinks)

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

    def alter_dataset(self, name: str, alterations: Sequence[Alteration]) -> None:
        self.ledger.query(sites.check_leads)
        self._datasets.alter(self.dataset(name), alterations)

    def drop_dataset(self, name: str, *, dry_run: bool = False) -> Dataset:
        """The catalog and the ledger forget it; its files stay where they are, and its sequence numbers stay taken. A
        dry run changes nothing, and is refused for the same reasons."""
        self.ledger.query(sites.check_leads)
        dataset = self.dataset(name)
        if dry_run:
            self._datasets.check_drop(dataset)
        else:
            self._datasets.drop(dataset)
        return dataset

    @property
    def _datasets(self) -> DatasetCare:
        from strandline.ingest.datasets import DatasetCare
        from strandline.receive.spool import open_spool

        return DatasetCare(self.id, self.ledger, self.catalog, open_spool(self.config))

    def adopt_dataset(
        self,
        name: str,
        *,
        history: History | None = None,
        deliver_by: Sequence[str] | None = None,
        leave_foreign: bool = False,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Numbered:
        """Make a dataset of a table that is there, and number its rows. Run again, it numbers what came since.

        What is left out is as recorded: for a table that is new here, all history is delivered, in one partition.
        Rows that have a sequence number before it becomes a dataset stay foreign: it is refused unless `leave_foreign`
        says that this is meant. `on_step` hears how many rows have got a number, and of how many at most.
        """
        from strandline.ingest.register_table import Terms, register

        self.ledger.query(sites.check_leads)
        name = full_name(name)
        known = register(
            self.ledger, self.catalog, self.tables, self.id, name, Terms(history, deliver_by, leave_foreign)
        )
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
        progress: Progress = lambda step, rows: None,
    ) -> Appended:
        """Every row of the frame once, however often the same batch id is offered. Returns when it is published.

        Followers apply what is in different shards side by side. `shard` is one of the dataset's, as `dataset show`
        lists them; without it, the batch id decides."""
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
        """Files, each a batch of its own, or all of them one batch with an id. Says how each one went; what dead
        writers left is settled first, where Spark has to start at all."""
        from strandline.ingest.ingest_files import Options

        rejects = self.config.home / "rejects" if rejects_folder is None else rejects_folder
        return self.ingestion.ingest(
            dataset,
            [Path(p) for p in paths],
            Options(
                batch_id, again, strict, format, rejects, self.config.settings.ingest.files_at_once_max,
                progress or (lambda path, step, rows: None), on_done or (lambda outcome: None), on_bytes,
            ),
        )  # fmt: skip

    def stream_writer(self, dataset: str) -> Callable[[DataFrame, int], None]:
        """For `writeStream.foreachBatch`: exactly once per (query, epoch), however often Spark repeats an epoch, and
        whatever it computes the second time."""
        target = self.dataset(dataset).name

        def write(df: DataFrame, epoch: int) -> None:
            query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            if query is None:
                raise UsageError("a stream writer is called by foreachBatch only", hint="Use lake.append for a batch.")
            self.ingestion.append(target, df, f"stream-{query}-{epoch}", same_content=False)

        return write

    def recover(self) -> Recovered:
        """Settle what dead writers left; the ledger is resynced first if the witness says so."""
        return self.ingestion.recover(now=True)

    # Ways out.

    @cached_property
    def delivery(self) -> Delivery:
        """Sinks, and what brings rows to them."""
        from strandline.deliver.context import DeliverContext
        from strandline.deliver.facade import Delivery

        context = DeliverContext(self.id, self.config, self.ledger, self._settled_tables)
        return Delivery(context, lambda: self.catalog, self.ingestion)

    @cached_property
    def receiver(self) -> Receiver:
        """Rows that come over HTTP: tokens, and what takes rows in and ingests them."""
        from strandline.ledger.receive.receipts import open_receipts
        from strandline.receive.facade import Receiver
        from strandline.receive.intake import IntakeContext
        from strandline.receive.spool import open_spool

        spool, receipts = open_spool(self.config), open_receipts(self.config)
        context = IntakeContext(
            self.config, self.ledger, spool, self._settled_tables, self.ingestion, receipts, self.witness
        )
        return Receiver(context, lambda: self.catalog, _read_lines)

    @cached_property
    def maintenance(self) -> Maintenance:
        """Compaction, retention, expiry and purge."""
        from strandline.deliver.quarantine.rows import QuarantineForPurge
        from strandline.maintain.context import MaintainContext
        from strandline.maintain.facade import Maintenance

        ways_in = (self.ingestion, self.receiver)
        context = MaintainContext(
            self.id, self.config, self.ledger, self._settled_tables, self.witness, *ways_in,
            QuarantineForPurge(self.delivery.context),
        )  # fmt: skip
        return Maintenance(context)

    @cached_property
    def replication(self) -> Replication:
        """Whether this site follows another one, and what keeps it up with that one."""
        from strandline.replicate.facade import Replication

        return Replication(
            self.id, self.config, self.ledger, self.witness, self.ingestion, lambda: self.work, lambda: self.catalog,
            lambda: self.maintenance.context,
        )  # fmt: skip

    @cached_property
    def reconciler(self) -> Reconciler:
        """Drift between tables and storage: runs, their record, and the files that they have in quarantine."""
        from strandline.reconcile.facade import Reconciler

        return Reconciler(self.config, self.ledger, lambda: self.catalog, self.tables, self.witness, self.ingestion)

    @cached_property
    def leader(self) -> Leader:
        """What followers of this lake are offered and sent."""
        from strandline.replicate.leader import Leader

        return Leader(self.id, self.ledger, lambda: self.catalog)

    @cached_property
    def followers(self) -> Followers:
        """The sites that follow this lake."""
        from strandline.replicate.manage_followers import Followers

        lease = None if self.config.settings.replication.arbiter is None else self.replication.lease
        return Followers(self.ledger, self.witness, lambda: self.catalog, lease)

    @cached_property
    def declarations(self) -> Declarations:
        """What a declaration wants of this lake, and the lake as a declaration."""
        from strandline.apply.facade import Declarations

        return Declarations(self)

    def reconcile(self, *, act: bool = False, delete: bool = False, accept_loss: bool = False) -> Run:
        """One run; without `act` it only reports."""
        from strandline.core.reconcile_records import Asked

        return self.reconciler.run(Asked(act, delete, accept_loss))

    def tick(self, sink: str | None = None) -> TickReport:
        """One pass over all sinks, or over one."""
        return self.delivery.tick(sink)

    @cached_property
    def tasks(self) -> Tasks:
        """Long work in threads of this process, on record in the ledger."""
        from strandline.jobs.tasks import Tasks
        from strandline.status.attention import bad_in_result

        lease_seconds = self.config.settings.ingest.lease_seconds
        return Tasks(self.ledger, lease_seconds=lease_seconds, judge=bad_in_result)

    # Seal and read.

    def sealed(self, dataset: str) -> Seq | None:
        target = self.dataset(dataset)
        return self.ledger.query(blocks.sealed, target.id)

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
        """The settled rows behind a token, or from the beginning, and the token to go on with."""
        from strandline.read import request

        token = None if continuation is None else tokens.decode(continuation)
        wanted = request.ReadRequest(token, until, partition, columns, limit, internal)
        self.ingestion.catch_up()
        target = self.dataset(dataset)
        request.bounds(self.ledger, self.id, target, wanted)  # says what is wrong with a request before Spark starts
        return request.rows(self.config, self.ledger, self.id, self.work.tables, target, wanted)

    # The ledger itself.

    def status(self) -> status.LakeStatus:
        return status.load_status(self.config, self.ledger, self.witness, self._glances)

    def check_catalog(self) -> None:
        """Raises StrandlineError unless the catalog of the datasets answers. Starts no JVM."""
        if self.config.settings.catalog.kind != "sqlite":
            self.catalog.ping()
        elif self.ledger.query(datasets.any_known):  # the first dataset makes the file
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
        """A person takes a table as it is, although it lacks what was published: it was rolled back on purpose."""
        from strandline.iceberg.spark.settled_tag import accept

        dataset = self.dataset(name)
        anchor = accept(self.tables(), dataset.name)  # the table first: a crash in between leaves it refused
        with self.ledger.write() as connection:
            table_states.accept(connection, dataset.id, anchor)
            forgotten = published_blocks.forget_snapshots(connection, dataset.id)
            datasets.forget_counts(connection)
            audit.record(connection, Event.TABLE_ACCEPTED, dataset=dataset.name, reason=reason, blocks=forgotten)
