"""What a leader offers: its settled blocks above a sequence number, of many datasets in one consistent read."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import sqlalchemy as sa

from strandline.core.errors import LedgerUnreadable
from strandline.core.sites.replication import FIRST_TERM, SiteRole, TakeoverCut
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.sites.terms import numbers_of
from strandline.core.types import (
    SEQ_MAX,
    BlockKind,
    Dataset,
    DatasetId,
    DatasetUuid,
    ItemKind,
    Seq,
    SeqRange,
    ShardId,
    seq_or_none,
)
from strandline.ledger.database_errors import REBUILD_HINT
from strandline.ledger.engine import rows_with
from strandline.ledger.ingest import blocks, datasets, restored_blocks
from strandline.ledger.replicate import item_ranges, sites
from strandline.ledger.replicate.cuts import settled_cuts
from strandline.ledger.schema.core import block, dataset, sequence
from strandline.ledger.schema.maintain import floor
from strandline.ledger.schema.receive import receive_hold
from strandline.ledger.schema.replicate import site

# In one answer: this many datasets that are new to the follower, and this many with new items. The leader reads the
# table of each.
DATASETS_MAX = 50


@dataclass(frozen=True, slots=True)
class SettledBlock:
    """A published block."""

    rows: SeqRange
    item: ItemKind
    kind: BlockKind
    shard: ShardId | None
    row_count: int | None
    batch_id: str
    digest: str | None
    ranges: tuple[SeqRange, ...]
    cut: TakeoverCut | None = None


@dataclass(frozen=True, slots=True)
class SettledItems:
    """The settled blocks of a dataset above `after`. At or below `complete_to` no block is missing, and none is
    open."""

    dataset: Dataset
    after: Seq  # 0: from the beginning
    complete_to: Seq
    blocks: tuple[SettledBlock, ...]
    sealed: Seq | None
    floor: Seq | None
    receiver_hold: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderState:
    """The ledger's part of an answer to a follower, before tables are read."""

    lake: str
    term: int
    unknown: tuple[Dataset, ...]  # the first datasets that the follower did not name
    dropped: tuple[DatasetUuid, ...]  # the datasets that it named and that were dropped
    # By dataset that the follower named. One that waits for its resync is left out: its seal may have been higher.
    seals: Mapping[DatasetUuid, Seq | None]
    news: tuple[SettledItems, ...]  # of the first datasets with blocks above the follower's bound
    datasets: tuple[DatasetUuid, ...] = ()  # all that the follower may see
    # Settled cuts, of datasets that have one of this term: it has them of all terms before, too.
    cuts: Mapping[DatasetId, tuple[NumberedCut, ...]] = field(default_factory=dict)

    def first_term(self, of: Dataset) -> int:
        return FIRST_TERM if of.id in self.cuts else self.term


def read_state(
    connection: sa.Connection,
    after: Mapping[DatasetUuid, Seq],
    *,
    items_max: int,
    only: Collection[str] | None = None,
    last: Collection[DatasetUuid] = (),
) -> LeaderState:
    """`after`: the follower's bounds; a dataset that is not named has none yet. `only`: the names of datasets that it
    may see; None: all. `last`: datasets that get a place only if the others leave one. `connection` must be one of
    `read_consistent`. If there is no news, it runs one query. Raises NotLeader at a site that follows, and at a leader
    that another site has superseded."""
    rows = connection.execute(_STATE).all()
    if not rows:
        raise LedgerUnreadable("the ledger has no counter of sequence numbers", hint=REBUILD_HINT)
    term = int(rows[0].term)
    if rows[0].role != SiteRole.LEADER or rows[0].superseded_term is not None:
        sites.check_offers(connection)
    visible = {r.uuid: r for r in rows if r.uuid is not None and (only is None or r.name in only)}
    new = {uuid for uuid, r in visible.items() if r.sealed is not None and r.sealed > after.get(uuid, 0)}
    ordered = sorted(visible, key=lambda uuid: uuid in last)  # otherwise in the order of names
    unknown = set(islice((uuid for uuid in ordered if uuid not in after), DATASETS_MAX))
    # The datasets in which the follower is furthest behind come first; it asks again for the others.
    behind = (uuid for uuid in new if uuid in after or uuid in unknown)
    new = set(heapq.nsmallest(DATASETS_MAX, behind, key=lambda uuid: (uuid in last, after.get(uuid, 0), uuid)))
    by_uuid = {d.uuid: d for d in datasets.list_datasets(connection)} if new or unknown else {}
    news = [
        _items(connection, by_uuid[uuid], after.get(uuid, Seq(0)), r, items_max)
        for uuid, r in visible.items()
        if uuid in new
    ]
    named = [uuid for uuid in after if uuid not in visible]
    dropped = _dropped(connection, named, only) if named else ()
    first_unknown = tuple(d for uuid, d in by_uuid.items() if uuid in unknown)
    seals = {uuid: seq_or_none(r.sealed) for uuid, r in visible.items() if uuid in after and not r.is_postponed}
    cuts = _cuts(connection, term) if term > FIRST_TERM and (news or first_unknown) else {}
    uuids = tuple(map(DatasetUuid, visible))
    return LeaderState(rows[0].lake, term, first_unknown, dropped, seals, tuple(news), uuids, cuts)


def _cuts(connection: sa.Connection, term: int) -> dict[DatasetId, tuple[NumberedCut, ...]]:
    by_dataset = settled_cuts(connection)
    return {id: own for id, own in by_dataset.items() if own[-1].number in numbers_of(term)}


# One row for each live dataset, in the order of names; one with only lake and term if there is none.
_STATE = (
    sa.select(
        sequence.c.lake,
        *site.c["term", "role", "superseded_term"],
        dataset.c.uuid,
        dataset.c.name,
        blocks.sealed_of(dataset.c.id).scalar_subquery().label("sealed"),
        blocks.first_open_of(dataset.c.id).scalar_subquery().label("below"),
        floor.c.floor,
        receive_hold.c.reason.label("receiver_hold"),
        restored_blocks.has_postponed(dataset.c.id).label("is_postponed"),
    )
    .select_from(sequence)
    .join(site, sa.true())
    .join(dataset, dataset.c.dropped_at.is_(None), isouter=True)
    .join(floor, floor.c.dataset_id == dataset.c.id, isouter=True)
    .join(receive_hold, receive_hold.c.dataset_id == dataset.c.id, isouter=True)
    .order_by(dataset.c.name)
)


_COLUMNS = (
    block.c.lo, block.c.hi, block.c.item, block.c.kind, block.c.shard, block.c.row_count, block.c.batch_id,
    block.c.digest, block.c.ranges,
)  # fmt: skip
# Literals, so that SQLite uses the partial indexes.
_SETTLED = (
    sa.select(*_COLUMNS)
    .where(
        block.c.dataset_id == sa.bindparam("dataset"),
        block.c.state == sa.literal_column("'published'"),
        block.c.hi > sa.bindparam("after"),
        block.c.hi < sa.bindparam("below"),
    )
    .order_by(block.c.hi, block.c.lo)
)
_RECOVERED = _SETTLED.where(block.c.kind == sa.literal_column("'recovered'"))
_OWN = _SETTLED.where(block.c.kind != sa.literal_column("'recovered'")).limit(sa.bindparam("most"))


def _items(connection: sa.Connection, of: Dataset, after: Seq, state: Any, items_max: int) -> SettledItems:
    """`state` is the dataset's row. Reads one block more than `items_max`: what lies before it is complete."""
    below = SEQ_MAX if state.below is None else int(state.below)
    bounds = {"dataset": of.id, "after": after, "below": below}
    own = list(map(_settled, connection.execute(_OWN, {**bounds, "most": items_max + 1})))
    recovered = list(map(_settled, connection.execute(_RECOVERED, bounds)))
    complete_to = below - 1
    if len(own) > items_max:
        complete_to = min(complete_to, own.pop().rows.lo - 1)
    sealed, floored = seq_or_none(state.sealed), seq_or_none(state.floor or None)
    return SettledItems(of, after, Seq(complete_to), (*own, *recovered), sealed, floored, state.receiver_hold)


def _settled(row: Any) -> SettledBlock:
    return SettledBlock(
        SeqRange(Seq(row.lo), Seq(row.hi)),
        ItemKind(row.item),
        BlockKind(row.kind),
        None if row.shard is None else ShardId(row.shard),
        row.row_count,
        row.batch_id,
        row.digest,
        *item_ranges.read(row.ranges),
    )


def _dropped(
    connection: sa.Connection, asked: Collection[DatasetUuid], only: Collection[str] | None
) -> tuple[DatasetUuid, ...]:
    """The named datasets that this lake has dropped. A dataset with the same id may exist again."""
    live = sa.select(dataset.c.uuid).where(dataset.c.dropped_at.is_(None))
    query = sa.select(dataset.c.uuid, dataset.c.name).where(
        dataset.c.dropped_at.is_not(None), dataset.c.uuid.not_in(live)
    )
    rows = rows_with(connection, query, dataset.c.uuid, asked)
    return tuple(sorted({DatasetUuid(r.uuid) for r in rows if only is None or r.name in only}))
