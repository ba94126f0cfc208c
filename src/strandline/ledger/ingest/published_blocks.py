"""Published blocks: which sequence numbers they own, and the snapshots that brought them."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from strandline.core.types import SEQ_MAX, BlockKind, DatasetId, ItemKind, Published, Seq, SeqRange, merge_ranges
from strandline.ledger.engine import slices
from strandline.ledger.ingest.blocks import read_blocks
from strandline.ledger.schema.core import block

LAST_SETTLED_MAX = 16


def last_settled(connection: sa.Connection, dataset: DatasetId) -> list[Published]:
    """The last published blocks that know their snapshot, newest first. Several, because two writers may mark their
    blocks in another order than they committed them."""
    query = (
        sa.select(block)
        .where(block.c.dataset_id == dataset, block.c.state == "published", block.c.snapshot_id.is_not(None))
        .order_by(block.c.changed_at.desc(), block.c.id.desc())
        .limit(LAST_SETTLED_MAX)
    )
    return [b for b in read_blocks(connection, query) if isinstance(b, Published)]


def owned_ranges_of(
    connection: sa.Connection, after: Mapping[DatasetId, Seq | None]
) -> dict[DatasetId, list[SeqRange]]:
    """The ranges of published blocks of many datasets, each above a sequence number of its own; not merged."""
    found: dict[DatasetId, list[SeqRange]] = {id: [] for id in after}
    for some in slices(after.items(), parameters_each=2):
        wanted = (
            sa.values(sa.column("dataset_id", sa.BigInteger), sa.column("after", sa.BigInteger), name="wanted")
            .data([(id, low or 0) for id, low in some])
            .cte("wanted")
        )
        query = sa.select(block.c.dataset_id, block.c.lo, block.c.hi).join_from(
            wanted,
            block,
            (block.c.dataset_id == wanted.c.dataset_id)
            & (block.c.state == sa.literal_column("'published'", sa.Text))
            & (block.c.hi > wanted.c.after),
        )
        for r in connection.execute(query):
            found[DatasetId(r.dataset_id)].append(SeqRange(Seq(r.lo), Seq(r.hi)))
    return found


def forget_snapshots(connection: sa.Connection, dataset: DatasetId) -> int:
    """Accepts the table as it is, whatever was published before, by a person's decision."""
    changed = connection.execute(
        block.update()
        .where(block.c.dataset_id == dataset, block.c.state == "published", block.c.snapshot_id.is_not(None))
        .values(snapshot_id=None)
    )
    return int(changed.rowcount)


def owned_ranges(
    connection: sa.Connection, dataset: DatasetId, *, after: Seq | None = None, until: Seq | None = None
) -> list[SeqRange]:
    """The merged ranges of published blocks that touch the given bounds. Rows outside of them are foreign."""
    query = sa.select(block.c.lo, block.c.hi).where(block.c.dataset_id == dataset, block.c.state == "published")
    if after is not None:
        query = query.where(block.c.hi > after)
    if until is not None:
        query = query.where(block.c.lo <= until)
    return merge_ranges(SeqRange(Seq(r.lo), Seq(r.hi)) for r in connection.execute(query))


def cut(connection: sa.Connection, dataset: DatasetId, *, after: Seq | None, sealed: Seq, rows_max: int) -> Seq:
    """Returns the end of about `rows_max` rows after `after`: the end of a block, or a point within a larger one."""
    query = (
        sa.select(block.c.lo, block.c.hi)
        .where(block.c.dataset_id == dataset, block.c.state == "published", block.c.hi > (after or 0))
        .where(block.c.lo <= sealed)
        .order_by(block.c.lo)
    )
    rows, reached = 0, after or 0
    for r in connection.execute(query):
        first, last = max(r.lo, reached + 1), min(r.hi, sealed)
        if last <= reached:  # a recovered range covers the blocks that were found again
            continue
        if rows + last - first + 1 > rows_max:
            return Seq(reached) if rows else Seq(first + rows_max - 1)
        rows, reached = rows + last - first + 1, last
    return sealed


def end_of_history(connection: sa.Connection, dataset: DatasetId) -> Seq | None:
    """The last sequence number of the rows that the table held when it was adopted: those numbered before the first
    batch. Rows that others appended later, and a later pass numbered, are new."""
    published = (block.c.dataset_id == dataset, block.c.state == "published", block.c.item == ItemKind.SEGMENT.value)
    first_batch = (
        sa.select(sa.func.min(block.c.lo)).where(*published, block.c.kind == BlockKind.BATCH.value).scalar_subquery()
    )
    found = connection.execute(
        sa.select(sa.func.max(block.c.hi)).where(
            *published,
            block.c.kind == BlockKind.ADOPTED.value,
            block.c.lo < sa.func.coalesce(first_batch, SEQ_MAX),
        )
    ).scalar()
    return None if found is None else Seq(int(found))
