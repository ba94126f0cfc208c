"""Cuts as items, each with a sequence number of its own; and what a cut does to blocks.

Recording a cut settles nothing: blocks that it cuts out stay open and hold back the seal, but are no longer applied.
When their rows are set aside and removed, one transaction abandons them and settles the cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import BlockLost, LedgerUnreadable, WatermarkMoved
from strandline.core.purged_ranges import span_of
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import FIRST_TERM, TakeoverCut
from strandline.core.sites.takeover_cuts import REASON_PREFIX, NumberedCut
from strandline.core.sites.terms import term_of
from strandline.core.types import (
    Block,
    BlockHead,
    Dataset,
    DatasetId,
    ItemKind,
    Reserved,
    Seq,
    SeqRange,
    subtract,
)
from strandline.ledger import audit
from strandline.ledger.engine import Ledger, from_row, slices, utc_now
from strandline.ledger.ingest import blocks, purge_items, sequence
from strandline.ledger.ingest.items import insert_item
from strandline.ledger.receive import announced_bodies
from strandline.ledger.replicate import item_ranges
from strandline.ledger.schema.core import block, dataset
from strandline.ledger.schema.replicate import set_aside
from strandline.ledger.witness import Witness

_NAMED_MAX = 100  # in the audit


def insert(connection: sa.Connection, dataset: DatasetId, number: Seq, cut: TakeoverCut) -> None:
    """Stores the cut of a site that becomes leader in the same transaction, settled, under a sequence number that the
    caller has taken. Followers get it as an item."""
    insert_item(connection, dataset, number, ItemKind.CUT, item_ranges.of_cut(cut))


def settled_cuts(connection: sa.Connection) -> dict[DatasetId, tuple[NumberedCut, ...]]:
    """The cuts that this site has carried out, and its own; by dataset, lowest first."""
    query = sa.select(block.c.dataset_id, block.c.lo, block.c.ranges).where(
        block.c.item == ItemKind.CUT.value, block.c.state == "published"
    )
    by_dataset: dict[DatasetId, list[NumberedCut]] = defaultdict(list)
    for row in connection.execute(query.order_by(block.c.lo)):
        _, cut = item_ranges.read(row.ranges)
        if cut is not None:
            by_dataset[DatasetId(row.dataset_id)].append(NumberedCut(Seq(row.lo), cut))
    return {id: tuple(own) for id, own in by_dataset.items()}


def left_out_term(connection: sa.Connection, dataset: DatasetId, numbers: Iterable[Seq]) -> int | None:
    """The term of one of these sequence numbers if a leader of this site was promoted by force without the rows of that
    term. A reader that has such a number may lack rows that this site has. None: there is no such number."""
    terms = {term_of(number) for number in numbers} - {FIRST_TERM}
    if not terms:
        return None
    own = settled_cuts(connection).get(dataset, ())
    return next((term for term in sorted(terms) if any(at.cut.leaves_out(term) for at in own)), None)


# --- what a recorded cut cuts out ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenCut:
    block: Reserved
    at: NumberedCut


def open_cuts(connection: sa.Connection, dataset: DatasetId) -> list[OpenCut]:
    """The cuts that are recorded and not carried out yet; lowest first."""
    query = (
        sa.select(block)
        .where(block.c.dataset_id == dataset, block.c.state == "reserved", block.c.item == ItemKind.CUT.value)
        .order_by(block.c.lo)
    )
    ranges = {r.id: r.ranges for r in connection.execute(query.with_only_columns(block.c.id, block.c.ranges))}
    opened = []
    for b in blocks.read_blocks(connection, query):
        _, cut = item_ranges.read(ranges[b.head.id])
        if cut is None or not isinstance(b, Reserved):
            raise LedgerUnreadable(f"block {b.head.rows} is a cut, and does not say which ranges stay")
        opened.append(OpenCut(b, NumberedCut(b.head.rows.lo, cut)))
    return opened


def blocks_below(connection: sa.Connection, dataset: DatasetId, at: NumberedCut) -> Sequence[Block]:
    """Every block below the cut that is not abandoned, and is open or ends above the new leader's seal."""
    query = sa.select(block).where(
        block.c.dataset_id == dataset,
        block.c.state != "abandoned",
        block.c.lo < at.number,
        sa.or_(block.c.hi > at.cut.above, block.c.state.in_(blocks.OPEN_STATES)),
    )
    return blocks.read_blocks(connection, query.order_by(block.c.lo))


def blocks_out(connection: sa.Connection, dataset: DatasetId, at: NumberedCut) -> list[BlockHead]:
    """The blocks that the cut cuts out."""
    return [b.head for b in blocks_below(connection, dataset, at) if at.cuts_out(b.head)]


def fence_cut_out(connection: sa.Connection, dataset: DatasetId, at: NumberedCut) -> None:
    """Fences off the processes that apply blocks which are cut out."""
    ids = [head.id for head in blocks_out(connection, dataset, at)]
    for part in slices(ids):
        connection.execute(
            block.update()
            .where(block.c.id.in_(part), block.c.state == "reserved")
            .values(fence=block.c.fence + 1, changed_at=utc_now())
        )


_WAITS = "waits-for-cut:"


def id_after_cut(batch_id: str) -> str:
    """The temporary batch id of a block, while a block that is cut out still has the batch's id."""
    return f"{_WAITS}{batch_id}"


def _restore_batch_ids(connection: sa.Connection, dataset: DatasetId) -> None:
    """Replaces temporary batch ids by the real ones that are free now. These blocks lie above the cut, so none is
    applied yet."""
    live = (block.c.dataset_id == dataset, block.c.state != "abandoned")
    waiting = connection.execute(
        sa.select(block.c.id, block.c.batch_id).where(*live, block.c.batch_id.startswith(_WAITS))
    )
    for row in waiting.all():
        batch = row.batch_id.removeprefix(_WAITS)
        if connection.execute(sa.select(block.c.id).where(*live, block.c.batch_id == batch)).first() is None:
            connection.execute(block.update().where(block.c.id == row.id).values(batch_id=batch))


# --- settling --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreparedCut:
    """A cut whose rows are set aside and removed, before the transaction that settles it."""

    dataset: Dataset
    block: Reserved
    at: NumberedCut
    epoch: int  # of the table


def settle_prepared(connection: sa.Connection, prepared: Sequence[PreparedCut]) -> int:
    """Settles the cuts, lowest first, and returns the epoch that the caller has to record. The caller's transaction has
    locked the counter, and takes a sequence number. Raises `WatermarkMoved` if the ledger has reached one of the cuts'
    epochs meanwhile: another process may have published since."""
    epoch = sequence.read(connection).epoch
    for cut in sorted(prepared, key=lambda p: p.at.number):
        if epoch >= cut.epoch:
            why = f"{cut.dataset.name}: another cut, or a resync, raised the epoch to {epoch}"
            raise WatermarkMoved(why, hint="Try again.")
        settle_in(connection, cut.dataset, cut.block, cut.at)
    return max([epoch, *(p.epoch for p in prepared)])


def settle(ledger: Ledger, witness: Witness, of: Dataset, reserved: Reserved, at: NumberedCut, *, epoch: int) -> bool:
    """Abandons the blocks that are cut out and settles the cut, in one transaction, after their rows were set aside and
    removed. `epoch` is what the table's was raised to. False if the caller has lost the cut. Raises `ResyncNeeded`; and
    `WatermarkMoved` if the ledger has reached that epoch meanwhile: another process may have published since."""
    failpoints.hit("cut.before_settle")
    with ledger.write() as connection:
        sequence.lock(connection)
        if not _is_held(connection, reserved):
            return False
        epoch = settle_prepared(connection, [PreparedCut(of, reserved, at, epoch)])
        # Takes a number, so that a ledger that is restored from before this is behind its witness.
        taken, _ = sequence.take(connection, witness, 1, step="cut")
        sequence.move(connection, last=taken.hi, epoch=epoch)
    failpoints.hit("cut.after_settle")
    return True


def check_held(connection: sa.Connection, held: Reserved) -> None:
    """Raises BlockLost if the cut is no longer the caller's."""
    if not _is_held(connection, held):
        raise BlockLost(f"another process has taken cut {held.head.rows.lo}, and settles it")


def _is_held(connection: sa.Connection, held: Reserved) -> bool:
    current = blocks.get(connection, held.head.id)
    return isinstance(current, Reserved) and current.fence == held.fence


def settle_in(connection: sa.Connection, of: Dataset, cut: Reserved, at: NumberedCut) -> None:
    """As `settle`, in a transaction that has locked the counter, takes a number, and records the table's epoch."""
    out = blocks_out(connection, of.id, at)
    purges = [head.rows.lo for head in out if head.item is ItemKind.PURGE]
    for part in slices([head.id for head in out]):
        connection.execute(
            block.update()
            .where(block.c.id.in_(part), block.c.state != "abandoned")
            .values(
                state="abandoned",
                reason=at.reason,
                lease_until=None,
                snapshot_id=None,
                row_count=None,
                changed_at=utc_now(),
            )
        )
    if not blocks.change_block(
        connection, cut.head, "reserved", cut.fence, state="published", row_count=0, lease_until=None
    ):
        raise WatermarkMoved(f"{of.name}: another process has taken cut {at.number}", hint="Try again.")
    _restore_batch_ids(connection, of.id)
    bodies = announced_bodies.withdraw(connection, of.id, [head.batch_id for head in out])
    audit.record(
        connection, Event.CUT_CARRIED_OUT, dataset=of.name, number=at.number, term=at.cut.term, above=at.cut.above,
        blocks=len(out), purges=[int(number) for number in purges[:_NAMED_MAX]], bodies=bodies,
    )  # fmt: skip


# --- what was set aside ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PurgeGivenUp:
    """A purge that the new leader does not know. The new leader still has the rows that the purge deleted here."""

    dataset: Dataset
    number: Seq
    ranges: tuple[SeqRange, ...]


def purges_given_up(connection: sa.Connection, datasets: Sequence[Dataset]) -> list[PurgeGivenUp]:
    """The purges that were given up and that no later purge covers; lowest first."""
    named = {d.id: d for d in datasets}
    is_purge = block.c.item == ItemKind.PURGE.value
    query = sa.select(block.c.dataset_id, block.c.lo, block.c.ranges)
    # A literal, so that SQLite uses the partial index.
    cut_out = query.where(block.c.state == sa.literal_column("'abandoned'"), block.c.reason.startswith(REASON_PREFIX))
    rows = [r for r in connection.execute(cut_out.where(is_purge).order_by(block.c.lo)) if r.dataset_id in named]
    if not rows:
        return []
    later_ones = (is_purge, block.c.state == "published", block.c.lo > rows[0].lo, purge_items.covers_earlier_purges())
    done = connection.execute(query.where(*later_ones)).all()
    uncovered = []
    for row in rows:
        later = [d for d in done if d.dataset_id == row.dataset_id and d.lo > row.lo]
        # From the first to the last row of each: its ranges do not name rows in between that the new leader lacks.
        covered = [span_of(deleted) for d in later if (deleted := item_ranges.read(d.ranges)[0])]
        ranges, _ = item_ranges.read(row.ranges)
        if subtract(ranges, covered):
            uncovered.append(PurgeGivenUp(named[DatasetId(row.dataset_id)], Seq(row.lo), ranges))
    return uncovered


@dataclass(frozen=True, slots=True)
class CutFolder:
    """A folder of rows, or of bodies, that this site acknowledged and the leader lacks."""

    dataset: str
    number: Seq | None  # of the cut; None: bodies of a receiver, which no cut knows
    place: str
    rows: int | None  # None: nobody has counted the rows in bodies
    files: int
    at: datetime


def record_cut_folder(
    connection: sa.Connection, of: Dataset, *, number: Seq | None, place: str, rows: int | None, files: int
) -> None:
    """Records the folder, before the rows are removed from the table."""
    connection.execute(
        set_aside.insert().values(
            dataset_id=of.id, number=number, place=place, row_count=rows, files=files, at=utc_now()
        )
    )
    audit.record(connection, Event.ROWS_SET_ASIDE, dataset=of.name, number=number, place=place, rows=rows, files=files)


def list_cut_folders(connection: sa.Connection) -> list[CutFolder]:
    """Newest first."""
    query = sa.select(set_aside, dataset.c.name).join_from(set_aside, dataset, dataset.c.id == set_aside.c.dataset_id)
    return [
        from_row(CutFolder, r, dataset=r.name, rows=r.row_count)
        for r in connection.execute(query.order_by(set_aside.c.id.desc()))
    ]
