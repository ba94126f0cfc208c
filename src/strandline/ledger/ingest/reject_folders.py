"""Folders with files of rejected rows, stored before a dataset's first rejected row is written there."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from strandline.core.types import DatasetId
from strandline.ledger.engine import Ledger, insert_into, utc_now
from strandline.ledger.schema.maintain import reject_folder


@dataclass(frozen=True, slots=True)
class RejectFolder:
    node: str
    folder: str


def note(ledger: Ledger, dataset: DatasetId, reject: RejectFolder) -> None:
    """Stores the folder. Idempotent."""
    with ledger.read() as connection:
        if reject in of_dataset(connection, dataset):
            return
    with ledger.write() as connection:
        connection.execute(
            insert_into(connection, reject_folder)
            .values(dataset_id=dataset, node=reject.node, folder=reject.folder, noted_at=utc_now())
            .on_conflict_do_nothing()
        )


def of_dataset(connection: sa.Connection, dataset: DatasetId) -> list[RejectFolder]:
    rows = connection.execute(
        sa.select(reject_folder)
        .where(reject_folder.c.dataset_id == dataset)
        .order_by(reject_folder.c.folder, reject_folder.c.node)
    )
    return [RejectFolder(r.node, r.folder) for r in rows]
