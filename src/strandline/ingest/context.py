"""The state that all steps of ingest share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from strandline.core.settings.lake_config import IngestSettings, LakeConfig
from strandline.core.sites.replication import route
from strandline.core.types import BlockHead, BlockKind, Dataset, DatasetId, Reserved, Seq, ShardId
from strandline.iceberg.metadata.table_metadata import WapId
from strandline.iceberg.spark.tables import SparkTables
from strandline.ingest.dataset_backoff import DatasetBackoff
from strandline.jobs.heartbeat import Heartbeat, beating
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.receive.receipts import Receipts
from strandline.ledger.witness import Witness


class SinkRecords(Protocol):
    """The records at the sinks' destinations, for a restored ledger. `deliver/sink_records.SinkInquiry` implements
    it."""

    def highest_delivered(self, connection: Connection, dataset: Dataset) -> Seq | None:
        """The highest watermark in the records of the dataset's sinks."""


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
    backoff: DatasetBackoff[DatasetId] = field(default_factory=DatasetBackoff)
    shards: dict[DatasetId, tuple[ShardId, int]] = field(default_factory=dict, repr=False)  # by dataset: first, count

    def wap(self, head: BlockHead) -> WapId:
        """The block's wap id. It names the shard only if the writer chose it, so that a resync can read it."""
        routed = self._shard_by_batch_id(head)
        return WapId(self.lake, head.rows, head.digest, head.batch_id, None if head.shard == routed else head.shard)

    def _shard_by_batch_id(self, head: BlockHead) -> ShardId | None:
        if head.kind is not BlockKind.BATCH:
            return head.shard
        if head.dataset not in self.shards:  # a dataset's shards never change
            self.shards.update((d.id, (d.first_shard, d.shards)) for d in self.ledger.query(datasets.list_datasets))
        first_and_count = self.shards.get(head.dataset)
        return head.shard if first_and_count is None else route(head.batch_id, *first_and_count)

    def renewed(self, block: Reserved) -> AbstractContextManager[Heartbeat]:
        """Renews the block's lease while its writer works."""
        seconds = self.settings.lease_seconds
        return beating(lambda: blocks.renew(self.ledger, block, lease_seconds=seconds), lease_seconds=seconds)
