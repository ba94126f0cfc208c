"""Blocks: reserves, changes and takes them over; and the queries for the seal and for recovery.

Every change is one transaction and a compare-and-set: it names the state and the fence that it expects, and its result
says whether it made the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import BatchConflict, LedgerUnreadable, ResyncNeeded
from strandline.core.types import (
    SEQ_MAX,
    Abandoned,
    Anchor,
    Block,
    BlockHead,
    BlockId,
    BlockKind,
    BlockPlacement,
    DatasetId,
    Fence,
    ItemKind,
    OpenBlock,
    Published,
    Reserved,
    Seq,
    SeqRange,
    ShardId,
    SnapshotId,
    Staged,
)
from strandline.ledger.engine import Ledger, from_row, utc_now
from strandline.ledger.ingest import datasets, reserve_sql, sequence, table_states
from strandline.ledger.replicate import sites
from strandline.ledger.schema.core import block, input_file
from strandline.ledger.schema.replicate import followed_dataset
from strandline.ledger.witness import Witness

OPEN_STATES = ("reserved", "staged")
# Spelled as in the unique indexes: SQLite uses a partial index only for a condition with the same terms.
_OWN_NUMBERS = sa.text("kind <> 'recovered' AND NOT offered")
_OFFERED_NUMBERS = sa.text("offered AND state <> 'abandoned'")


def _block(row: Any) -> Block:
    rows = SeqRange(Seq(row.lo), Seq(row.hi))
    head = from_row(
        BlockHead, row, dataset=row.dataset_id, rows=rows, kind=BlockKind(row.kind), item=ItemKind(row.item)
    )
    snapshot = None if row.snapshot_id is None else SnapshotId(row.snapshot_id)
    match row.state:
        case "reserved":
            return Reserved(head, Fence(row.fence), row.lease_until)
        case "staged" if snapshot is not None:
            return Staged(head, Fence(row.fence), snapshot, row.changed_at)
        case "published":
            return Published(head, row.row_count, snapshot, row.changed_at)
        case "abandoned":
            return Abandoned(head, row.reason, row.changed_at)
    raise LedgerUnreadable(f"block {row.id} has the state {row.state!r}")


@dataclass(frozen=True, slots=True)
class NewBlock:
    dataset: DatasetId
    rows: int
    batch_id: str
    digest: str | None
    kind: BlockKind = BlockKind.BATCH
    input_files: tuple[str, ...] = ()
    received: bool = False  # a batch of received bodies, which must be unfinished
    shard: ShardId | None = None  # None: the dataset's first


class PlaceStale(Exception):
    """The counter has moved too far since the table was checked."""


def reserve(
    ledger: Ledger, witness: Witness, wanted: NewBlock, *, lease_seconds: float, place: BlockPlacement | None = None
) -> tuple[Block, bool]:
    """Returns the block of this batch, durably reserved, and whether it is new. A known batch gets its old block.

    `place` keeps the block clear of sequence numbers that the table holds. Raises `BatchConflict` for a known batch
    with another digest, `PlaceStale` if the table must be checked again, `BatchEnded` for received bodies that are
    in another batch by now, `NotLeader`, `LeaseOver` and `ResyncNeeded`."""
    if wanted.rows < 1:
        raise ValueError("an empty batch has no block")
    ledger.write_right.obtain()
    while True:
        try:
            return _reserve(ledger, witness, wanted, lease_seconds=lease_seconds, place=place)
        except reserve_sql.ResyncPostponed:
            ledger.query(check_resynced, wanted.dataset)  # raises, unless the resync was completed just now
        except reserve_sql.SiteFollows:
            ledger.query(sites.check_leads)  # raises, unless this site was promoted just now


def _reserve(
    ledger: Ledger, witness: Witness, wanted: NewBlock, *, lease_seconds: float, place: BlockPlacement | None
) -> tuple[Block, bool]:
    now = utc_now()
    lease_until = now + timedelta(seconds=lease_seconds)
    new = {
        "count": wanted.rows,
        "new_dataset": wanted.dataset,
        "new_batch": wanted.batch_id,
        "new_kind": wanted.kind.value,
        "new_digest": wanted.digest,
        "new_lease": lease_until,
        "new_at": now,
        "new_shard": wanted.shard,
    }
    with ledger.write() as connection:
        if place is not None:
            _step_over(connection, witness, wanted, place)
        while (placed := reserve_sql.place(connection, new)) is None:
            check_resynced(connection, wanted.dataset)
            existing = of_batch(connection, wanted.dataset, wanted.batch_id)
            if existing is not None:
                return _same_batch(existing, wanted), False
            sequence.read(connection)  # there is a counter, so the block was abandoned just now: try again
        last, inserted, shard = placed
        if wanted.received and inserted is not None:
            reserve_sql.check_unfinished(connection, wanted.dataset, wanted.batch_id)
        # If two callers reserve the same batch, the second one's sequence numbers stay unused, which costs nothing.
        rows = sequence.witnessed(witness, last, wanted.rows, step="reserve")
        if inserted is not None and wanted.input_files:
            files = [{"block_id": inserted, "path": p} for p in sorted(wanted.input_files)]
            connection.execute(input_file.insert(), files)
        existing = None if inserted is not None else of_batch(connection, wanted.dataset, wanted.batch_id)
    failpoints.hit("reserve.after_commit")
    if inserted is None:
        if existing is None:
            raise LedgerUnreadable(f"the block of batch {wanted.batch_id!r} exists and cannot be read")
        return _same_batch(existing, wanted), False
    head = BlockHead(
        BlockId(inserted), wanted.dataset, rows, wanted.kind, wanted.batch_id, wanted.digest, now,
        None if shard is None else ShardId(shard),
    )  # fmt: skip
    return Reserved(head, Fence(1), lease_until), True


def _step_over(connection: sa.Connection, witness: Witness, wanted: NewBlock, place: BlockPlacement) -> None:
    """Moves the counter past the foreign sequence numbers in the table, so that no block gets them. Stores the checked
    snapshot in the same transaction: stored alone, it would let the next writer use them without a check."""
    counter = sequence.lock(connection)
    if not place.fits(counter.last, wanted.rows):
        raise PlaceStale
    if place.above > counter.last:
        sequence.take(connection, witness, place.above - counter.last, step="reserve")
    datasets.set_numbers_checked(connection, wanted.dataset, place.checked)


def _same_batch(existing: Block, wanted: NewBlock) -> Block:
    check_same_batch(existing, wanted.digest)
    return existing


def check_same_batch(existing: Block, digest: str | None) -> None:
    """Raises `BatchConflict` if both digests are known, and differ."""
    # The batch may not be written yet, or may have no digest. Then its id alone decides.
    if None not in (existing.head.digest, digest) and existing.head.digest != digest:
        raise BatchConflict(
            f"batch {existing.head.batch_id!r} came in before with other rows (block {existing.head.rows})",
            hint="Give the new rows a batch id of their own.",
        )


def of_batch(connection: sa.Connection, dataset: DatasetId, batch_id: str) -> Block | None:
    own = (block.c.dataset_id == dataset, block.c.batch_id == batch_id)
    return _find(connection, *own, block.c.state != "abandoned")


def get(connection: sa.Connection, id: BlockId) -> Block | None:
    return _find(connection, block.c.id == id)


def of_number(connection: sa.Connection, dataset: DatasetId, lo: int) -> Block | None:
    """The dataset's block whose `lo` this is. Recovered ranges do not count, except those that a leader offered."""
    own = (block.c.dataset_id == dataset, block.c.lo == lo)
    return _find(connection, *own, _OWN_NUMBERS) or _find(connection, *own, _OFFERED_NUMBERS)


def _find(connection: sa.Connection, *where: sa.ColumnElement[bool] | sa.TextClause) -> Block | None:
    row = connection.execute(sa.select(block).where(*where)).one_or_none()
    return None if row is None else _block(row)


def find_block(ledger: Ledger, head: BlockHead) -> Block | None:
    """The block's current state; None if the ledger does not know it, because it was restored from an older copy."""
    with ledger.read() as connection:
        # A resync may have stored the batch again in another row.
        for stored in (get(connection, head.id), of_number(connection, head.dataset, head.rows.lo)):
            if stored is not None and is_same(stored.head, head):
                return stored
    return None


def is_same(stored: BlockHead, head: BlockHead) -> bool:
    """Whether both are one block: after a restore, another block may have its id, and even its sequence numbers."""
    return (stored.rows, stored.batch_id, stored.kind) == (head.rows, head.batch_id, head.kind)


def change_block(
    connection: sa.Connection, head: BlockHead, expected: str, fence: Fence | None, /, **values: Any
) -> bool:
    """Compare-and-set: changes the block if it is in the expected state, and has the fence if one is given."""
    same = (block.c.id == head.id, block.c.lo == head.rows.lo, block.c.batch_id == head.batch_id)
    where = [*same, block.c.state == expected, *([] if fence is None else [block.c.fence == fence])]
    changed = connection.execute(block.update().where(*where).values(changed_at=utc_now(), **values))
    return changed.rowcount == 1


def renew(ledger: Ledger, reserved: Reserved, *, lease_seconds: float) -> bool:
    until = utc_now() + timedelta(seconds=lease_seconds)
    return ledger.change(change_block, reserved.head, "reserved", reserved.fence, lease_until=until)


def mark_staged(
    ledger: Ledger, witness: Witness, reserved: Reserved, snapshot: SnapshotId, *, digest: str | None = None
) -> bool:
    """The commit point of a batch: stages the block. False if the writer has lost it. `digest` is that of the rows on
    the branch, unless the ledger has it. A leader needs its lease. Raises `ResyncNeeded` if the witness differs: a
    ledger that was restored while the batch was written may show an abandoned block as reserved again."""
    failpoints.hit("stage.before_mark")
    if not reserved.head.offered:
        ledger.write_right.obtain()
    with ledger.write() as connection:
        sequence.check(connection, witness)
        sites.check_may_commit(connection, offered=reserved.head.offered)
        if not reserved.head.offered:
            ledger.write_right.check()
        check_resynced(connection, reserved.head.dataset)
        if reserved.head.offered and datasets.is_dropped(connection, reserved.head.dataset):
            return False
        values = {"state": "staged", "snapshot_id": snapshot, "lease_until": None, **_digest_value(digest)}
        done = change_block(connection, reserved.head, "reserved", reserved.fence, **values)
    failpoints.hit("stage.after_mark")
    return done


def _digest_value(digest: str | None) -> dict[str, str]:
    return {} if digest is None else {"digest": digest}


def mark_published(
    ledger: Ledger,
    open_block: OpenBlock,
    *,
    row_count: int,
    snapshot: SnapshotId | None,
    settled: Anchor | None = None,
    digest: str | None = None,
) -> bool:
    """Marks the block as published; True if it is published now, by this process or by another one. `settled` is the
    snapshot of our tag when the block was found in main."""
    failpoints.hit("settle.before_mark")
    state = "reserved" if isinstance(open_block, Reserved) else "staged"
    # A follower's staged block may be applied again: then it is staged under another fence, with a branch of its own.
    fence = open_block.fence if isinstance(open_block, Reserved) or open_block.head.offered else None
    with ledger.write() as connection:
        if settled is not None:
            table_states.raise_settled(connection, open_block.head.dataset, settled)
        values = {"row_count": row_count, "snapshot_id": snapshot, "lease_until": None, **_digest_value(digest)}
        done = change_block(connection, open_block.head, state, fence, state="published", **values)
        if not done:
            now = get(connection, open_block.head.id)
            done = isinstance(now, Published) and is_same(now.head, open_block.head)
    failpoints.hit("settle.after_mark")
    return done


def take_over(ledger: Ledger, expired: Reserved, *, lease_seconds: float, above: Fence = Fence(0)) -> Reserved | None:
    """Fences off a writer whose lease ran out. None if it has renewed the lease, or another process was faster."""
    now = utc_now()
    until = now + timedelta(seconds=lease_seconds)
    with ledger.write() as connection:
        current = get(connection, expired.head.id)
        if not isinstance(current, Reserved) or max(expired.lease_until, current.lease_until) > now:
            return None
        fence = Fence(max(expired.fence, above) + 1)
        if not change_block(connection, expired.head, "reserved", expired.fence, fence=fence, lease_until=until):
            return None
    return Reserved(expired.head, fence, until)


def abandon(ledger: Ledger, witness: Witness, reserved: Reserved, reason: str) -> bool:
    """Abandons the block and takes a sequence number, so that a restored ledger that undoes this is noticed."""
    with ledger.write() as connection:
        sequence.lock(connection)
        current = get(connection, reserved.head.id)
        is_ours = isinstance(current, Reserved) and current.fence == reserved.fence
        if current is None or not is_ours or not is_same(current.head, reserved.head):
            return False
        sequence.take(connection, witness, 1, step="abandon")
        done = abandon_in(connection, reserved, reason)
    failpoints.hit("abandon.after_commit")
    return done


def abandon_in(connection: sa.Connection, reserved: Reserved, reason: str) -> bool:
    """Abandons the block in the transaction of a caller that takes a sequence number itself; see `abandon`."""
    values = {"state": "abandoned", "reason": reason, "lease_until": None}
    return change_block(connection, reserved.head, "reserved", reserved.fence, **values)


def void(connection: sa.Connection, staged: Staged, reason: str) -> bool:
    """Abandons a staged block that cannot be published, by a person's decision."""
    values = {"state": "abandoned", "reason": f"voided: {reason}", "snapshot_id": None}
    return change_block(connection, staged.head, "staged", staged.fence, **values)


def open_blocks(connection: sa.Connection, dataset: DatasetId | None = None) -> list[OpenBlock]:
    query = sa.select(block).where(block.c.state.in_(OPEN_STATES)).order_by(block.c.lo)
    if dataset is not None:
        query = query.where(block.c.dataset_id == dataset)
    return [b for b in map(_block, connection.execute(query)) if isinstance(b, Reserved | Staged)]


def read_blocks(connection: sa.Connection, query: sa.Select[Any]) -> list[Block]:
    """The blocks of a query for all columns of `block`."""
    return list(map(_block, connection.execute(query)))


# A range for which the dataset's resync was postponed. Offered blocks are those that a follower still has to apply.
# Literals, so that SQLite uses the index.
IS_POSTPONED = (
    block.c.state == sa.literal_column("'reserved'"),
    block.c.kind == sa.literal_column("'recovered'"),
    ~block.c.offered,
)
_FIRST_POSTPONED = sa.select(block.c.id).where(*IS_POSTPONED, block.c.dataset_id == sa.bindparam("dataset")).limit(1)


def check_resynced(connection: sa.Connection, dataset: DatasetId) -> None:
    """Raises `ResyncNeeded` if the dataset's resync was postponed. Its table may have batches that the ledger does not
    know. Until it knows them, nothing is ingested and nothing is settled."""
    if connection.execute(_FIRST_POSTPONED, {"dataset": dataset}).first() is not None:
        name = next((d.name for d in datasets.list_datasets(connection) if d.id == dataset), f"dataset {dataset}")
        raise ResyncNeeded(
            f"the table of {name} could not be read when the ledger was resynced, so the ledger may not know its "
            "latest batches",
            hint="`strandline recover` resyncs it as soon as its table can be read; `strandline status` says what is "
            "wrong with it.",
        )


def sealed(connection: sa.Connection, dataset: DatasetId) -> Seq | None:
    """The highest sequence number up to which every block of the dataset is settled."""
    last = connection.execute(_SEALED, {"dataset": dataset}).scalar()
    return None if last is None else Seq(int(last))


def sealed_of(dataset: sa.ColumnElement[int]) -> sa.Select[Any]:
    """The query of `sealed`. The dataset may be a column of another query."""
    settled = block.alias()
    below = sa.func.coalesce(first_open_of(dataset).scalar_subquery(), SEQ_MAX)
    return (
        sa.select(sa.func.max(settled.c.hi))
        .where(
            settled.c.dataset_id == dataset, settled.c.state == sa.literal_column("'published'"), settled.c.hi < below
        )
        .where(~_is_behind(dataset))
        .correlate_except(settled)
    )


def first_open_of(dataset: sa.ColumnElement[int]) -> sa.Select[Any]:
    """The query of the lowest sequence number that is open. The dataset may be a column of another query."""
    opened = block.alias()
    # Literals: with parameters, SQLite does not use the partial index of open blocks.
    states = [sa.literal_column(f"'{state}'", sa.Text) for state in OPEN_STATES]
    lowest = sa.select(sa.func.min(opened.c.lo)).where(opened.c.dataset_id == dataset, opened.c.state.in_(states))
    return lowest.correlate_except(opened)


def _is_behind(dataset: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """A follower whose ledger was restored does not know how far it had sealed the dataset."""
    behind = followed_dataset.alias()
    return sa.exists().where(behind.c.dataset_id == dataset, behind.c.witnessed.is_not(None)).correlate_except(behind)


_SEALED = sealed_of(sa.bindparam("dataset", type_=sa.BigInteger))


def highest(connection: sa.Connection, dataset: DatasetId) -> Seq | None:
    last = connection.execute(sa.select(sa.func.max(block.c.hi)).where(block.c.dataset_id == dataset)).scalar()
    return None if last is None else Seq(int(last))


def input_files(connection: sa.Connection, id: BlockId) -> Sequence[str]:
    return list(connection.execute(sa.select(input_file.c.path).where(input_file.c.block_id == id)).scalars())
