"""Items without rows (purges and cuts): each is a block of one sequence number, published at once."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.types import BlockKind, DatasetId, ItemKind, Seq
from strandline.ledger.engine import utc_now
from strandline.ledger.schema.core import block


def insert_item(
    connection: sa.Connection, dataset: DatasetId, number: Seq, kind: ItemKind, ranges: str, name: str | None = None
) -> None:
    """Stores the item, published, under a sequence number that the caller has taken. `name`: its batch id, which
    followers get."""
    now = utc_now()
    connection.execute(
        block.insert().values(
            dataset_id=dataset,
            lo=number,
            hi=number,
            kind=BlockKind.BATCH.value,
            batch_id=name or f"{kind.value}-{number}",
            state="published",
            fence=1,
            row_count=0,
            reserved_at=now,
            changed_at=now,
            item=kind.value,
            ranges=ranges,
        )
    )
