"""What every stage of ingest works with."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.config import IngestSettings
from strandline.errors import TableUnfit
from strandline.ledger.engine import Ledger
from strandline.ledger.witness import Witness
from strandline.tables.metadata import TableView, WapId, unfit
from strandline.tables.spark_tables import SparkTables
from strandline.types import BlockHead, Dataset


@dataclass(frozen=True, slots=True)
class Workbench:
    lake: str
    ledger: Ledger
    witness: Witness
    tables: SparkTables
    settings: IngestSettings

    def wap(self, head: BlockHead) -> WapId:
        return WapId(self.lake, head.rows, head.digest, head.batch_id)

    def check_fit(self, view: TableView, dataset: Dataset) -> None:
        if why := unfit(view, dataset, self.lake):
            raise TableUnfit(
                f"table {dataset.name} is not fit for ingest: {why}",
                hint=f"Undo that change, or run `strandline dataset adopt {dataset.name}` to take the table as it is.",
            )
