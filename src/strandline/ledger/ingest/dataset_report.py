"""What `status` shows about datasets: of all of them, in a fixed number of queries. And the blocks of one dataset, page
by page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from strandline.core.types import Block, Dataset, DatasetId, OpenBlock, Published, Seq, TableCounts, seq_or_none
from strandline.ledger.ingest import blocks, datasets, published_blocks, table_states
from strandline.ledger.ingest.table_states import TableState
from strandline.ledger.schema.core import block, dataset, table_state


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What the ledger knows of a dataset and its table."""

    dataset: Dataset
    allocated: Seq | None  # the highest sequence number of its blocks
    sealed: Seq | None
    open_blocks: tuple[OpenBlock, ...]
    state: TableState
    # As `published_blocks.last_settled`, for a dataset whose settled snapshot is not on record; else nothing.
    published: tuple[Published, ...]
    counts: TableCounts | None


def read_datasets(connection: sa.Connection) -> list[DatasetFacts]:
    """All datasets by name, without dropped ones. `connection` must be one of `read_consistent`."""
    live = datasets.list_datasets(connection)
    numbers = _numbers(connection)
    opened: dict[DatasetId, list[OpenBlock]] = {}
    for b in blocks.open_blocks(connection):
        opened.setdefault(b.head.dataset, []).append(b)
    states = table_states.by_dataset(connection)
    published = _last_settled(connection)
    counts = datasets.counts_by_dataset(connection)
    facts = []
    for d in live:
        settled, sealed = numbers[d.id]
        own = tuple(opened.get(d.id, ()))
        allocated = seq_or_none(_highest(settled, *(b.head.rows.hi for b in own)))
        state, last = states.get(d.id, TableState()), tuple(published.get(d.id, ()))
        facts.append(DatasetFacts(d, allocated, sealed, own, state, last, counts.get(d.id)))
    return facts


def _numbers(connection: sa.Connection) -> dict[DatasetId, tuple[int | None, Seq | None]]:
    """The highest sequence number of the settled blocks, and the seal."""
    return {
        DatasetId(id): (_highest(published, abandoned), seq_or_none(sealed))
        for id, sealed, published, abandoned in connection.execute(_numbers_query()).all()
    }


@cache
def _numbers_query() -> sa.Select[Any]:
    # One subquery per state: each state has an index by the highest sequence number.
    highest = [
        sa.select(sa.func.max(block.c.hi))
        .where(block.c.dataset_id == dataset.c.id, block.c.state == sa.literal_column(f"'{state}'", sa.Text))
        .correlate(dataset)
        .scalar_subquery()
        .label(state)
        for state in ("published", "abandoned")
    ]
    sealed = blocks.sealed_of(dataset.c.id).scalar_subquery().label("sealed")
    return sa.select(dataset.c.id, sealed, *highest).where(dataset.c.dropped_at.is_(None))


def _highest(*numbers: int | None) -> int | None:
    return max((n for n in numbers if n is not None), default=None)


def _last_settled(connection: sa.Connection) -> dict[DatasetId, list[Published]]:
    """The last published blocks of datasets whose settled snapshot is not on record. There are few or none: a version
    of Strandline published them that did not set its tag."""
    newest: dict[DatasetId, list[Published]] = {}
    for b in blocks.read_blocks(connection, _last_settled_query()):
        if isinstance(b, Published):
            newest.setdefault(b.head.dataset, []).append(b)
    return newest


@cache
def _last_settled_query() -> sa.Select[Any]:
    place = sa.func.row_number().over(
        partition_by=block.c.dataset_id, order_by=(block.c.changed_at.desc(), block.c.id.desc())
    )
    newest = (
        sa.select(block.c.id, place.label("place"))
        .join_from(dataset, block, block.c.dataset_id == dataset.c.id)
        .join(table_state, table_state.c.dataset_id == dataset.c.id, isouter=True)
        .where(
            dataset.c.dropped_at.is_(None),
            table_state.c.settled_snapshot.is_(None),
            block.c.state == sa.literal_column("'published'", sa.Text),
            block.c.snapshot_id.is_not(None),
        )
        .subquery("newest")
    )
    return (
        sa.select(block)
        .join_from(newest, block, block.c.id == newest.c.id)
        .where(newest.c.place <= published_blocks.LAST_SETTLED_MAX)
        .order_by(block.c.changed_at.desc(), block.c.id.desc())
    )


def page(
    connection: sa.Connection, dataset: DatasetId, *, only_open: bool = False, before: int | None, blocks_max: int
) -> list[Block]:
    """Highest sequence numbers first; `before` is the `lo` of the last block of the previous page."""
    query = sa.select(block).where(block.c.dataset_id == dataset).order_by(block.c.lo.desc(), block.c.id.desc())
    if only_open:
        query = query.where(block.c.state.in_(blocks.OPEN_STATES))
    if before is not None:
        query = query.where(block.c.lo < before)
    return blocks.read_blocks(connection, query.limit(blocks_max))
