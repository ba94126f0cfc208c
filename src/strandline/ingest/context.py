"""What every stage of ingest works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.core.settings import IngestSettings
from strandline.core.types import BlockHead, Dataset, Seq
from strandline.iceberg.metadata.table_metadata import WapId
from strandline.iceberg.spark.tables import SparkTables
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.witness import Witness
from strandline.storage.receipts import Receipts


@dataclass(frozen=True, slots=True)
class IngestContext:
    lake: str
    ledger: Ledger
    witness: Witness
    tables: SparkTables
    settings: IngestSettings
    receipts: Receipts
    """Of received batches, in the warehouse."""
    delivered: Callable[[Connection, Dataset], Seq | None] = lambda connection, dataset: None
    """How far any sink of a dataset has come, by the sinks' own records: a restored ledger does not know."""

    def wap(self, head: BlockHead) -> WapId:
        return WapId(self.lake, head.rows, head.digest, head.batch_id)
