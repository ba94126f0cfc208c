"""What a follower has recorded of its leader: up to where it has the items, which of them are still to be applied, and
up to where each shard is applied.

Each item is an open block with the leader's sequence numbers. Recording an offer is one transaction, under the
counter's lock and with the witness raised before it commits: a ledger that is restored from before that is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import TermPassed, WatermarkMoved
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import FIRST_TERM, Item, Offer, TakeoverCut
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.sites.terms import term_of
from strandline.core.types import (
    SEQ_MAX,
    BlockHead,
    BlockKind,
    Dataset,
    DatasetId,
    DatasetUuid,
    Fence,
    ItemKind,
    Reserved,
    Seq,
    SeqRange,
    ShardId,
    Staged,
)
from strandline.ledger import audit
from strandline.ledger.engine import Ledger, slices, upsert, utc_now
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.receive import announced_bodies
from strandline.ledger.replicate import cuts, item_ranges, sites
from strandline.ledger.schema.core import block, dataset
from strandline.ledger.schema.replicate import followed_dataset
from strandline.ledger.witness import Witness

_EPOCH_BITS = 32  # of a fence: a process that held a block before a resync never has its fence after it


def first_fence(epoch: int) -> Fence:
    return Fence((epoch << _EPOCH_BITS) + 1)


def epoch_of(fence: Fence) -> int:
    """The epoch of the ledger in which an item was recorded or opened again."""
    return fence >> _EPOCH_BITS


@dataclass(frozen=True, slots=True)
class Followed:
    dataset: Dataset
    bound: Seq  # every item of the leader up to here is recorded; 0: nothing
    # The witness when the ledger was found to be behind it: the dataset has no seal. None: the ledger is not behind.
    witnessed: Seq | None
    leader_seal: Seq | None  # as last reported; None: the leader has sealed nothing, or has not reported it
    offered_at: datetime | None  # None: the leader does not offer the dataset now
    term: int  # of the last leader whose cut is recorded, or in which the dataset was created

    @property
    def is_offered(self) -> bool:
        return self.offered_at is not None

    @property
    def reached_term(self) -> int:
        """The highest term in which this site has followed a leader, even if its ledger was lost: the witness has a
        sequence number of that term. A leader of a lower term would offer rows that were given up."""
        return self.term if self.witnessed is None else max(self.term, term_of(self.witnessed))


@dataclass(frozen=True, slots=True)
class OpenItem:
    block: Reserved | Staged
    offered_rows: int | None  # how many rows the leader has counted in it
    ranges: tuple[SeqRange, ...]  # where a purge deleted rows
    cut: TakeoverCut | None = None

    @property
    def head(self) -> BlockHead:
        return self.block.head

    @property
    def numbered_cut(self) -> NumberedCut | None:
        return None if self.cut is None else NumberedCut(self.head.rows.lo, self.cut)


# --- datasets --------------------------------------------------------------------------------------------------------


def follow_dataset(
    connection: sa.Connection,
    id: DatasetId,
    *,
    bound: Seq = Seq(0),
    witnessed: Seq | None = None,
    term: int = FIRST_TERM,
) -> None:
    """Follows a dataset, from its beginning unless it has everything up to `bound`; no change if it is followed."""
    if connection.execute(sa.select(followed_dataset).where(followed_dataset.c.dataset_id == id)).first() is None:
        values = {"bound": bound, "witnessed": witnessed, "term": term}
        connection.execute(followed_dataset.insert().values(dataset_id=id, **values))


def leave(connection: sa.Connection, of: Followed) -> None:
    """Stops following a dataset that the new leader does not have. Its table stays as it is."""
    connection.execute(followed_dataset.delete().where(followed_dataset.c.dataset_id == of.dataset.id))
    audit.record(connection, Event.DATASET_LEFT, dataset=of.dataset.name, term=of.term)


def list_followed(connection: sa.Connection) -> list[Followed]:
    live = {d.id: d for d in datasets.list_datasets(connection)}
    rows = connection.execute(sa.select(followed_dataset).order_by(followed_dataset.c.dataset_id))
    return [
        Followed(
            live[DatasetId(r.dataset_id)],
            Seq(r.bound),
            None if r.witnessed is None else Seq(r.witnessed),
            None if r.leader_seal is None else Seq(r.leader_seal),
            r.offered_at,
            r.term,
        )
        for r in rows
        if r.dataset_id in live
    ]


def fall_behind(connection: sa.Connection, id: DatasetId, witnessed: Seq) -> None:
    """Records that the dataset's table may have items that the ledger lacks: the dataset has no seal until all of them
    are recorded and applied again."""
    before = connection.execute(
        sa.select(followed_dataset.c.witnessed).where(followed_dataset.c.dataset_id == id)
    ).scalar()
    upsert(
        connection,
        followed_dataset,
        {"dataset_id": id},
        witnessed=max(witnessed, before or 0),
        bound=_bound(connection, id) or 0,
    )


def catch_up(connection: sa.Connection, id: DatasetId, upto: Seq, *, epoch: int) -> bool:
    """Gives the dataset its seal back if everything up to `upto` is applied: all that the site and its leader had when
    the leader was asked, in this epoch of the ledger. False if the dataset is still behind, or was not."""
    row = connection.execute(sa.select(followed_dataset).where(followed_dataset.c.dataset_id == id)).one()
    if row.witnessed is None or row.bound < upto or sequence.read(connection).epoch != epoch:
        return False
    if any(b.head.rows.lo <= upto for b in blocks.open_blocks(connection, id)):
        return False
    values = {"witnessed": None, "leader_seal": max(int(upto), row.leader_seal or 0) or None}
    if row.bound < row.witnessed and row.bound < (row.leader_seal or 0):
        return False  # according to an offer that was recorded meanwhile, the leader has more
    connection.execute(followed_dataset.update().where(followed_dataset.c.dataset_id == id).values(**values))
    return True


# --- offers ----------------------------------------------------------------------------------------------------------


def record(ledger: Ledger, witness: Witness, offers: Sequence[Offer]) -> list[DatasetUuid]:
    """Records the items of each offer that begins at its dataset's bound. Returns the datasets of these offers: a late
    or repeated one changes nothing. A cut in it moves the dataset to the term of that cut, settles nothing, and fences
    off processes that still apply what it cuts out. Raises `ResyncNeeded`, `WatermarkMoved` for an offer of another
    lake, `TermPassed` for one of a term that is over, and RefusedError at a site that leads, or is about to."""
    with ledger.write() as connection:
        counter = sequence.lock(connection)
        sites.check_follows(connection)
        if wrong := next((o for o in offers if o.lake != counter.lake), None):
            raise WatermarkMoved(
                f"the leader offers items of lake {wrong.lake}; this site follows {counter.lake}",
                hint="Nothing was recorded. `strandline replication status` shows both sites.",
            )
        by_id = {f.dataset.uuid: f for f in list_followed(connection)}
        for o in offers:
            if o.dataset.id in by_id:
                check_term(by_id[o.dataset.id], o.term)
        new = [
            (by_id[o.dataset.id], o) for o in offers if o.dataset.id in by_id and by_id[o.dataset.id].bound == o.after
        ]
        # Moved even if the counter is past the items: a ledger that is restored from before must be behind its witness.
        last = max([counter.last + 1, *(int(o.upto) for _, o in new)])
        if any(o.items for _, o in new):
            failpoints.hit("record.before_witness")
            witness.raise_to(last, expected=counter.last)
            failpoints.hit("record.after_witness")
            sequence.move(connection, last=last, epoch=counter.epoch)
        for followed, offer in new:
            _insert_items(connection, followed.dataset, offer.items, counter.epoch)
            for item in offer.items:
                if item.cut is not None:
                    cuts.fence_cut_out(connection, followed.dataset.id, NumberedCut(item.lo, item.cut))
            _move_bound(connection, followed, offer)
            announced_bodies.store_leader_hold(connection, followed.dataset.id, offer.receiver_hold)
        if any(i.cut is not None for _, o in new for i in o.items):
            sites.raise_term(connection, min(f.term for f in list_followed(connection)))
    failpoints.hit("record.after_commit")
    return [f.dataset.uuid for f, _ in new]


def check_term(followed: Followed, offered: int) -> None:
    """Raises `TermPassed` if the site has recorded the cut of a later leader than the one that offers."""
    if offered < followed.reached_term:
        raise TermPassed(
            f"{followed.dataset.name}: the leader of this site leads in term {offered}, and this site has "
            f"recorded that another one took over in term {followed.reached_term}",
            hint="Nothing was recorded. `strandline rejoin LEADER` names the leader of that term.",
        )


def _insert_items(connection: sa.Connection, of: Dataset, items: Sequence[Item], epoch: int) -> None:
    if not items:
        return
    now = utc_now()
    names = _batch_ids(connection, of, items)
    connection.execute(
        block.insert(),
        [
            {
                "dataset_id": of.id,
                "lo": item.lo,
                "hi": item.hi,
                # The rest of a range whose batches the leader has forgotten is one batch here.
                "kind": BlockKind.ADOPTED.value if item.source is BlockKind.ADOPTED else BlockKind.BATCH.value,
                "batch_id": names[item.lo],
                "digest": item.digest,
                "state": "reserved",
                "fence": first_fence(epoch),
                "lease_until": now,  # free: any process may take it at once
                "reserved_at": now,
                "changed_at": now,
                "shard": item.shard,
                "item": item.kind.value,
                "ranges": None if item.kind is ItemKind.SEGMENT else item_ranges.of_item(item.ranges, item.cut),
                "offered": True,
                "offered_rows": item.rows,
            }
            for item in items
        ],
    )


def _batch_ids(connection: sa.Connection, of: Dataset, items: Sequence[Item]) -> dict[Seq, str]:
    """Batch ids by the item's first sequence number. If a part of a block was recorded before, that part has the batch
    id, and the rest gets another one. A batch that was sent again to a new leader has its old block here until the cut
    abandons it; then the new block gets the batch id."""
    wanted = [i.batch_id for i in items if i.batch_id is not None]
    query = sa.select(block).where(block.c.dataset_id == of.id, block.c.state != "abandoned")
    parts = slices(wanted)
    live = [b.head for part in parts for b in blocks.read_blocks(connection, query.where(block.c.batch_id.in_(part)))]
    holders = {head.batch_id: head for head in live}
    recorded = [c.at for c in cuts.open_cuts(connection, of.id)] if holders else []
    recorded += [NumberedCut(i.lo, i.cut) for i in items if i.cut is not None]
    ids = {}
    for item in items:
        holder = None if item.batch_id is None else holders.get(item.batch_id)
        if item.batch_id is None or (holder is not None and not any(at.cuts_out(holder) for at in recorded)):
            ids[item.lo] = f"{item.kind.value}-{item.lo}-{item.hi}"
        else:
            ids[item.lo] = item.batch_id if holder is None else cuts.id_after_cut(item.batch_id)
    return ids


def _bound(connection: sa.Connection, id: DatasetId) -> int | None:
    return connection.execute(sa.select(followed_dataset.c.bound).where(followed_dataset.c.dataset_id == id)).scalar()


def _move_bound(connection: sa.Connection, followed: Followed, offer: Offer) -> None:
    own = followed_dataset.c.dataset_id == followed.dataset.id
    values: dict[str, Any] = {"bound": offer.upto, "offered_at": utc_now()}
    if offer.seal is not None:
        values["leader_seal"] = offer.seal
    if taken_over := [item.cut.term for item in offer.items if item.cut is not None]:
        values["term"] = max(taken_over)
    moved = connection.execute(
        followed_dataset.update().where(own, followed_dataset.c.bound == offer.after).values(**values)
    )
    if moved.rowcount != 1:
        raise WatermarkMoved(f"{followed.dataset.name}: another process recorded an offer meanwhile", hint="Try again.")


# --- items -----------------------------------------------------------------------------------------------------------


def open_items(connection: sa.Connection) -> list[OpenItem]:
    """The items of all datasets that are still to be applied, lowest first."""
    live = sa.select(dataset.c.id).where(dataset.c.dropped_at.is_(None))
    is_open = (block.c.state.in_(blocks.OPEN_STATES), block.c.offered, block.c.dataset_id.in_(live))
    query = sa.select(block).where(*is_open).order_by(block.c.lo)
    rows = {r.id: r for r in connection.execute(query.with_only_columns(*block.c["id", "offered_rows", "ranges"]))}
    return [
        OpenItem(b, rows[b.head.id].offered_rows, *item_ranges.read(rows[b.head.id].ranges))
        for b in blocks.read_blocks(connection, query)
        if isinstance(b, Reserved | Staged)
    ]


def take(ledger: Ledger, item: Reserved, *, lease_seconds: float) -> Reserved | None:
    """Takes an item, with a fence of the ledger's present epoch. None if another process has it."""
    above = first_fence(ledger.query(sequence.read).epoch)
    return blocks.take_over(ledger, item, lease_seconds=lease_seconds, above=above)


def release_item(ledger: Ledger, reserved: Reserved) -> bool:
    """Lets any process take the item at once, instead of after the lease. False if the caller has lost it."""
    return ledger.change(blocks.change_block, reserved.head, "reserved", reserved.fence, lease_until=utc_now())


def apply_again(ledger: Ledger, staged: Staged) -> Reserved | None:
    """Reopens an item whose rows can no longer be published; any process may take it at once. None if another process
    has settled or reopened it."""
    now, fence = utc_now(), Fence(staged.fence + 1)
    values = {"state": "reserved", "snapshot_id": None, "fence": fence, "lease_until": now}
    done = ledger.change(blocks.change_block, staged.head, "staged", staged.fence, **values)
    return Reserved(staged.head, fence, now) if done else None


def open_again(connection: sa.Connection, epoch: int) -> int:
    """Reopens every open item, staged ones too, with a fence of the new epoch: a process that held one before the
    ledger was restored cannot commit it. Returns how many."""
    now = utc_now()
    values = {"state": "reserved", "snapshot_id": None, "fence": first_fence(epoch), "lease_until": now}
    opened = (block.c.state.in_(blocks.OPEN_STATES), block.c.offered)
    return int(connection.execute(block.update().where(*opened).values(**values, changed_at=now)).rowcount)


def settle_without_rows(ledger: Ledger, witness: Witness, reserved: Reserved, *, row_count: int) -> bool:
    """Settles an item for which nothing is staged: a purge, or a segment whose rows are in the table or deleted. False
    if the caller has lost the item. As at the commit point of a batch, the witness is checked under the counter's
    lock."""
    failpoints.hit("follow.before_settle")
    with ledger.write() as connection:
        sequence.check(connection, witness)
        values = {"row_count": row_count, "lease_until": None}
        done = blocks.change_block(connection, reserved.head, "reserved", reserved.fence, state="published", **values)
    failpoints.hit("follow.after_settle")
    return done


# --- progress --------------------------------------------------------------------------------------------------------


def applied_upto(connection: sa.Connection, followed: Sequence[Dataset]) -> dict[ShardId, Seq]:
    """Up to where each shard is applied; purges and cuts are in every shard. 0: nothing is."""
    shards_max = max((d.shards for d in followed), default=0)
    ids = {d.id for d in followed}
    rows = connection.execute(_applied_upto(shards_max)) if followed else ()
    return {ShardId(r.shard): Seq(r.mark or 0) for r in rows if r.dataset_id in ids}


def _applied_upto(shards_max: int) -> sa.Select[Any]:
    """The query: the formula of the seal, over the items of each shard."""
    count = sa.select(sa.literal(0, sa.BigInteger).label("n")).cte("count", recursive=True)
    count = count.union_all(sa.select(count.c.n + 1).where(count.c.n + 1 < shards_max))
    shards = (
        sa.select(dataset.c.id.label("dataset_id"), (dataset.c.first_shard + count.c.n).label("shard"))
        .join_from(dataset, followed_dataset, followed_dataset.c.dataset_id == dataset.c.id)
        .join(count, count.c.n < dataset.c.shards)
        .where(dataset.c.dropped_at.is_(None))
        .subquery()
    )
    opened, settled = block.alias(), block.alias()
    states = [sa.literal_column(f"'{state}'", sa.Text) for state in blocks.OPEN_STATES]
    lowest = (
        sa.select(sa.func.min(opened.c.lo))
        .where(opened.c.dataset_id == shards.c.dataset_id, opened.c.state.in_(states))
        .where(sa.or_(opened.c.shard == shards.c.shard, opened.c.shard.is_(None)))
        .correlate(shards)
        .scalar_subquery()
    )
    mark = (
        sa.select(settled.c.hi)
        .where(settled.c.dataset_id == shards.c.dataset_id, settled.c.state == sa.literal_column("'published'"))
        .where(sa.or_(settled.c.shard == shards.c.shard, settled.c.shard.is_(None)))
        .where(settled.c.hi < sa.func.coalesce(lowest, SEQ_MAX))
        .order_by(settled.c.hi.desc())
        .limit(1)
        .correlate(shards)
        .scalar_subquery()
    )
    columns = (shards.c.dataset_id, shards.c.shard)
    return sa.select(*columns, mark.label("mark")).order_by(*columns)


def seals(connection: sa.Connection, followed: Sequence[Dataset]) -> Mapping[DatasetUuid, Seq]:
    """The seals of the datasets that have one."""
    sealed = {d.uuid: blocks.sealed(connection, d.id) for d in followed}
    return {id: seal for id, seal in sealed.items() if seal is not None}
