"""Published blocks: which sequence numbers they own, and the snapshots that added them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from strandline.core.types import SEQ_MAX, BlockKind, DatasetId, ItemKind, Published, Seq, SeqRange, merge_ranges
from strandline.ledger.engine import slices
from strandline.ledger.ingest.blocks import read_blocks
from strandline.ledger.schema.core import block

LAST_SETTLED_MAX = 16
PAGE_BLOCKS = 500

# Literals: with parameters, SQLite does not use the partial indexes of published blocks. Only recovered ranges may
# cover other blocks.
_IS_PUBLISHED = block.c.state == sa.literal_column("'published'", sa.Text)
_PUBLISHED = sa.select(block.c.lo, block.c.hi).where(_IS_PUBLISHED)
_RECOVERED = block.c.kind == sa.literal_column("'recovered'", sa.Text)


def last_settled(connection: sa.Connection, dataset: DatasetId) -> list[Published]:
    """The last published blocks whose snapshot is recorded, newest first. Several, because two writers may mark their
    blocks in another order than they committed them."""
    query = (
        sa.select(block)
        .where(block.c.dataset_id == dataset, _IS_PUBLISHED, block.c.snapshot_id.is_not(None))
        .order_by(block.c.changed_at.desc(), block.c.id.desc())
        .limit(LAST_SETTLED_MAX)
    )
    return [b for b in read_blocks(connection, query) if isinstance(b, Published)]


def _between() -> sa.CompoundSelect[Any]:
    """The query of blocks that touch two bounds. Of those that end above the upper one, one at most begins below it,
    and recovered ones."""
    dataset, after, until = (sa.bindparam(name, type_=sa.BigInteger) for name in ("dataset", "after", "until"))
    of = _PUBLISHED.where(block.c.dataset_id == dataset, block.c.hi > after)
    next_one = of.where(~_RECOVERED, block.c.hi > until).order_by(block.c.hi).limit(1).subquery()
    return sa.union_all(
        of.where(block.c.hi <= until),
        sa.select(next_one).where(next_one.c.lo <= until),
        of.where(_RECOVERED, block.c.hi > until, block.c.lo <= until),
    )


_BETWEEN = _between()


def owned_ranges_of(
    connection: sa.Connection, after: Mapping[DatasetId, Seq | None]
) -> dict[DatasetId, list[SeqRange]]:
    """The ranges of published blocks of many datasets, each above a sequence number of its own; not merged."""
    ranges: dict[DatasetId, list[SeqRange]] = {id: [] for id in after}
    for part in slices(after.items(), parameters_each=2):
        wanted = (
            sa.values(sa.column("dataset_id", sa.BigInteger), sa.column("after", sa.BigInteger), name="wanted")
            .data([(id, low or 0) for id, low in part])
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
            ranges[DatasetId(r.dataset_id)].append(SeqRange(Seq(r.lo), Seq(r.hi)))
    return ranges


def forget_snapshots(connection: sa.Connection, dataset: DatasetId) -> int:
    """Forgets the snapshots of published blocks, when a person accepts the table as it is."""
    changed = connection.execute(
        block.update()
        .where(block.c.dataset_id == dataset, block.c.state == "published", block.c.snapshot_id.is_not(None))
        .values(snapshot_id=None)
    )
    return int(changed.rowcount)


def owned_ranges(
    connection: sa.Connection, dataset: DatasetId, *, after: Seq | None = None, until: Seq | None = None
) -> list[SeqRange]:
    """The merged ranges of published blocks that touch the given bounds. Rows outside of them are foreign. Reads only
    these blocks, however many the dataset has."""
    if until is None:
        query = _PUBLISHED.where(block.c.dataset_id == dataset, block.c.hi > (after or 0))
        return merge_ranges(SeqRange(Seq(r.lo), Seq(r.hi)) for r in connection.execute(query))
    bounds = {"dataset": dataset, "after": after or 0, "until": until}
    return merge_ranges(SeqRange(Seq(r.lo), Seq(r.hi)) for r in connection.execute(_BETWEEN, bounds))


def end_of_rows(connection: sa.Connection, dataset: DatasetId, *, after: Seq | None, sealed: Seq, rows_max: int) -> Seq:
    """The sequence number at which about `rows_max` rows after `after` end: the end of a block, or a point within a
    larger one. Reads only the blocks of these rows, however many follow."""
    recovered = _PUBLISHED.where(_RECOVERED, block.c.dataset_id == dataset, block.c.hi > (after or 0))
    by_lo = [(r.lo, r.hi) for r in connection.execute(recovered.where(block.c.lo <= sealed).order_by(block.c.lo))]
    rows, end = 0, after or 0
    for lo, hi in heapq.merge(by_lo, _disjoint(connection, dataset, end, sealed)):
        first, last = max(lo, end + 1), min(hi, sealed)
        if last <= end:  # a recovered range covers the blocks that were found again
            continue
        if rows + last - first + 1 > rows_max:
            return Seq(end) if rows else Seq(first + rows_max - 1)
        rows, end = rows + last - first + 1, last
    return sealed


def _disjoint(connection: sa.Connection, dataset: DatasetId, after: int, until: Seq) -> Iterator[tuple[int, int]]:
    """The blocks between the bounds, in order, without recovered ones. Each page is read when it is needed."""
    page = _PUBLISHED.where(~_RECOVERED, block.c.dataset_id == dataset).order_by(block.c.hi).limit(PAGE_BLOCKS)
    while rows := connection.execute(page.where(block.c.hi > after)).all():
        for r in rows:
            if r.lo > until:
                return
            yield r.lo, r.hi
        after = rows[-1].hi


def end_of_history(connection: sa.Connection, dataset: DatasetId) -> Seq | None:
    """The last sequence number of the rows that the table held when it was adopted: those numbered before the first
    batch. Rows that others appended later, and a later pass numbered, are new."""
    published = (block.c.dataset_id == dataset, block.c.state == "published", block.c.item == ItemKind.SEGMENT.value)
    first_batch = (
        sa.select(sa.func.min(block.c.lo)).where(*published, block.c.kind == BlockKind.BATCH.value).scalar_subquery()
    )
    last = connection.execute(
        sa.select(sa.func.max(block.c.hi)).where(
            *published,
            block.c.kind == BlockKind.ADOPTED.value,
            block.c.lo < sa.func.coalesce(first_batch, SEQ_MAX),
        )
    ).scalar()
    return None if last is None else Seq(int(last))
