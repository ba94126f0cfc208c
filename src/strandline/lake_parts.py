"""Puts the parts of a lake together.

Opening a lake is fast. Spark starts when it is needed; before its first use, the ledger is resynced (if it is behind
its witness), and the blocks of dead writers are settled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Self

from strandline.core.errors import WitnessUnreadable
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import sites
from strandline.ledger.witness import Witness, open_witness
from strandline.read.seal import SealWatches
from strandline.status.table_glances import TableGlances
from strandline.storage.s3_settings import send_no_trailers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.deliver.facade import Delivery
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.spark.tables import SparkTables
    from strandline.ingest.context import IngestContext
    from strandline.ingest.facade import Ingestion
    from strandline.jobs.tasks import Tasks
    from strandline.maintain.facade import Maintenance
    from strandline.receive.body.json_lines import ReadLines
    from strandline.receive.facade import Receiver
    from strandline.reconcile.facade import Reconciler
    from strandline.replicate.facade import Replication
    from strandline.replicate.lead.leader import Leader
    from strandline.replicate.lead.manage_followers import Followers


def _read_lines() -> ReadLines:
    from strandline.ingest.sources.body import read_json_lines

    return read_json_lines


class OpenTables:
    """The tables of a lake (`iceberg/lake_tables.LakeTables`). Thread-safe."""

    def __init__(self, config: LakeConfig, ingestion: Ingestion) -> None:
        self._config = config
        self._ingestion = ingestion
        self._opening = threading.Lock()
        self._catalog: PyIcebergCatalog | None = None

    @property
    def catalog(self) -> PyIcebergCatalog:
        from strandline.iceberg.pyiceberg.catalog import open_catalog

        with self._opening:
            if self._catalog is None:
                self._catalog = open_catalog(self._config)
            return self._catalog

    @property
    def settled(self) -> SparkTables:
        return self._ingestion.context.tables

    @property
    def unsettled(self) -> SparkTables:
        return self._ingestion.unsettled_context.tables

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()


class LakeParts:
    """Each heavy part is made when it is first used."""

    def __init__(self, config: LakeConfig) -> None:
        self.config = config
        send_no_trailers(config.settings.warehouse)  # before the lake has threads that read the environment
        self.ledger = Ledger(config)
        self.witness: Witness = open_witness(config)
        self._glances = TableGlances(config)
        self._watches = SealWatches(self.ledger, poll_seconds=config.settings.seal.poll_seconds)
        self.on_start: Callable[[str], None] | None = None
        """Gets the steps of a slow first start (fetching the runtime, starting Spark)."""

    def open(self) -> None:
        """Checks that the lake has a ledger with a version that this program knows."""
        self.ledger.open()
        with self.ledger.read() as connection:
            self.id = sequence.read(connection).lake
        if self.config.settings.replication.arbiter is not None:
            self.ledger.write_right = self.replication.lease or self.ledger.write_right
        try:
            witnessed = self.witness.read()
        except WitnessUnreadable:
            return  # reads need no witness; a write is refused when it reserves sequence numbers
        witnessed.check_lake(self.id)
        site = self.ledger.query(sites.get)
        witnessed.check_follows(site.follows)
        witnessed.check_leads(site.follows, site.claimed_term)

    def close(self) -> None:
        if "tasks" in self.__dict__:
            self.tasks.close()
        if "replication" in self.__dict__:
            self.replication.close()
        self._watches.close()
        if "open_tables" in self.__dict__:
            self.open_tables.close()
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # The heavy parts, made when first needed.

    @property
    def spark(self) -> SparkSession:
        """A session of this lake's own; its tables are `lake.<namespace>.<table>`."""
        return self.tables().spark

    @cached_property
    def open_tables(self) -> OpenTables:
        return OpenTables(self.config, self.ingestion)

    def tables(self) -> SparkTables:
        """Iceberg through Spark, without settling anything first."""
        return self.open_tables.unsettled

    @property
    def work(self) -> IngestContext:
        """The context of ingest. The first use settles the blocks of dead writers."""
        return self.ingestion.context

    @property
    def catalog(self) -> PyIcebergCatalog:
        """Iceberg without a JVM."""
        return self.open_tables.catalog

    @cached_property
    def ingestion(self) -> Ingestion:
        """Append, ingest and recovery."""
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

    @cached_property
    def delivery(self) -> Delivery:
        """Sinks, and delivery to them."""
        from strandline.deliver.context import DeliverContext
        from strandline.deliver.facade import Delivery

        return Delivery(DeliverContext(self.id, self.config, self.ledger, self.open_tables), self.ingestion)

    @cached_property
    def receiver(self) -> Receiver:
        """Rows over HTTP: tokens, and the receiver that accepts and ingests them."""
        from strandline.ledger.receive.receipts import open_receipts
        from strandline.receive.facade import Receiver
        from strandline.receive.intake import IntakeContext
        from strandline.receive.spool import open_spool

        spool, receipts = open_spool(self.config), open_receipts(self.config)
        context = IntakeContext(
            self.config, self.ledger, spool, self.open_tables, self.ingestion, receipts, self.witness
        )
        return Receiver(context, _read_lines)

    @cached_property
    def maintenance(self) -> Maintenance:
        """Compaction, retention, expiry and purge."""
        from strandline.deliver.quarantine.rows import QuarantineForPurge
        from strandline.maintain.context import MaintainContext
        from strandline.maintain.facade import Maintenance

        ways_in = (self.ingestion, self.receiver)
        context = MaintainContext(
            self.id, self.config, self.ledger, self.open_tables, self.witness, *ways_in,
            QuarantineForPurge(self.delivery.context),
        )  # fmt: skip
        return Maintenance(context)

    @cached_property
    def replication(self) -> Replication:
        """Following another site, and leading."""
        from strandline.replicate.facade import Replication

        return Replication(self.id, self.config, self.ledger, self.witness, self)

    @cached_property
    def reconciler(self) -> Reconciler:
        """Drift between tables and storage: runs, their records, and quarantined files."""
        from strandline.reconcile.facade import Reconciler

        return Reconciler(self.config, self.ledger, self.open_tables, self.witness, self.ingestion)

    @cached_property
    def leader(self) -> Leader:
        """Offers and rows for followers of this lake."""
        from strandline.replicate.lead.leader import Leader

        return Leader(self.id, self.ledger, self.open_tables)

    @cached_property
    def followers(self) -> Followers:
        """The sites that follow this lake."""
        from strandline.replicate.lead.manage_followers import Followers

        lease = None if self.config.settings.replication.arbiter is None else self.replication.lease
        return Followers(self.ledger, self.witness, self.open_tables, lease)

    @cached_property
    def tasks(self) -> Tasks:
        """Long work in threads of this process, on record in the ledger."""
        from strandline.jobs.tasks import Tasks
        from strandline.status.attention import find_attention

        lease_seconds = self.config.settings.ingest.lease_seconds
        return Tasks(self.ledger, lease_seconds=lease_seconds, judge=find_attention)
