"""The id and the shards of a dataset as its table records them, in case the ledger is lost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.core.sites.replication import SHARDS_MAX
from strandline.core.types import Dataset, DatasetUuid, ShardId
from strandline.iceberg.metadata.table_metadata import DATASET_ID_PROPERTY, FIRST_SHARD_PROPERTY, SHARDS_PROPERTY


@dataclass(frozen=True, slots=True)
class DatasetIdentity:
    uuid: DatasetUuid
    first_shard: ShardId | None  # None: not recorded
    shards: int

    @classmethod
    def of(cls, dataset: Dataset) -> DatasetIdentity:
        return cls(dataset.uuid, dataset.first_shard, dataset.shards)

    @classmethod
    def parse(cls, properties: Mapping[str, str], table_uuid: str) -> DatasetIdentity:
        """Properties of a table from a version without dataset ids: the id is the table's uuid, and it has one
        shard."""
        first, shards = (_number(properties.get(name)) for name in (FIRST_SHARD_PROPERTY, SHARDS_PROPERTY))
        if shards is None or not 1 <= shards <= SHARDS_MAX:
            first, shards = None, 1
        uuid = DatasetUuid(properties.get(DATASET_ID_PROPERTY) or table_uuid)
        return cls(uuid, None if first is None else ShardId(first), shards)

    def to_properties(self) -> dict[str, str]:
        properties = {DATASET_ID_PROPERTY: str(self.uuid), SHARDS_PROPERTY: str(self.shards)}
        return properties if self.first_shard is None else properties | {FIRST_SHARD_PROPERTY: str(self.first_shard)}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
