"""What all steps of ingest share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from strandline.core.settings import IngestSettings, LakeConfig
from strandline.core.types import BlockHead, Dataset, Reserved, Seq
from strandline.iceberg.metadata.table_metadata import WapId
from strandline.iceberg.spark.tables import SparkTables
from strandline.ingest.dataset_backoff import DatasetBackoff
from strandline.jobs.heartbeat import Heartbeat, beating
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks
from strandline.ledger.receive.receipts import Receipts
from strandline.ledger.witness import Witness


class SinkRecords(Protocol):
    """What sinks say of themselves, for a restored ledger. `deliver/sink_records.SinkInquiry` implements it."""

    def highest_delivered(self, connection: Connection, dataset: Dataset) -> Seq | None:
        """How far any sink of the dataset has come."""


@dataclass(frozen=True, slots=True)
class IngestContext:
    config: LakeConfig
    lake: str
    ledger: Ledger
    witness: Witness
    tables: SparkTables
    settings: IngestSettings
    receipts: Receipts  # of received batches, in the warehouse
    sinks: SinkRecords
    backoff: DatasetBackoff = field(default_factory=DatasetBackoff)

    def wap(self, head: BlockHead) -> WapId:
        return WapId(self.lake, head.rows, head.digest, head.batch_id)

    def renewed(self, held: Reserved) -> AbstractContextManager[Heartbeat]:
        """Renews the block's lease while its writer works."""
        seconds = self.settings.lease_seconds
        return beating(lambda: blocks.renew(self.ledger, held, lease_seconds=seconds), lease_seconds=seconds)
