"""Purges as items: a purge that is done takes a sequence number, so that followers carry it out between the same
batches."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from strandline.core.errors import NotLeader
from strandline.core.types import DatasetId, ItemKind, Seq, SeqRange, merge_ranges
from strandline.ledger.ingest import sequence
from strandline.ledger.ingest.items import insert_item
from strandline.ledger.replicate import item_ranges, sites
from strandline.ledger.schema.core import block
from strandline.ledger.witness import Witness


def take_number(
    connection: sa.Connection, witness: Witness, dataset: DatasetId, ranges: Sequence[SeqRange]
) -> Seq | None:
    """Takes a sequence number and stores the item, in the transaction that records the end of the purge, with the
    ranges in which rows were deleted. None, and no change, if there are none. Raises `ResyncNeeded`, and `NotLeader` at
    a site that follows: its next number may be one of the leader's.

    The number is above everything that was settled before. So a follower that has applied everything below it has had
    every row that the purge could find."""
    if not ranges:
        return None
    if (site := sites.get(connection)).follows:
        raise NotLeader(
            f"this site became a follower of {site.leader} while it purged: the leader still has the rows",
            hint="Run the purge again there.",
        )
    taken, _ = sequence.take(connection, witness, 1, step="purge")
    insert(connection, dataset, taken.lo, ranges)
    return taken.lo


def insert(
    connection: sa.Connection, dataset: DatasetId, number: Seq, ranges: Sequence[SeqRange], *, name: str | None = None
) -> None:
    """Stores the item under a number that the caller has taken."""
    insert_item(connection, dataset, number, ItemKind.PURGE, item_ranges.of_purge(merge_ranges(ranges)), name)


def first_row_above(connection: sa.Connection, dataset: DatasetId, number: Seq) -> Seq | None:
    """The first row that a purge with a higher number deleted. None if there is no such purge."""
    is_purge = (block.c.item == ItemKind.PURGE.value, block.c.state == sa.literal_column("'published'"))
    query = sa.select(block.c.ranges).where(block.c.dataset_id == dataset, block.c.lo > number, *is_purge)
    by_purge = [item_ranges.read(row.ranges)[0] for row in connection.execute(query)]
    return min((r.lo for ranges in by_purge for r in ranges), default=None)


_BEGUN = "begun-purge-"


def insert_begun(connection: sa.Connection, dataset: DatasetId, number: Seq, ranges: Sequence[SeqRange]) -> None:
    """As `insert`, for purges that this site had begun and that its promotion gives up. Some of their rows may be gone
    from this site, so followers delete them, too. The item does not stand for those purges: other sites may have
    carried them out."""
    insert(connection, dataset, number, ranges, name=f"{_BEGUN}{number}")


def covers_earlier_purges() -> sa.ColumnElement[bool]:
    """Whether a purge counts for earlier purges of the same rows, as a condition of a query."""
    return ~block.c.batch_id.startswith(_BEGUN)
