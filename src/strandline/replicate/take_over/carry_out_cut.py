"""Carries out a cut: writes rows that the new leader lacks to files and deletes them from the table; then one
transaction abandons their blocks and settles the cut.

Durable steps, each of which can be repeated:

1. Raise the table's epoch above the ledger's (docs/adr/0089). From then on no process can publish to this table: a
   publisher has the ledger's epoch, which is lower. So the rows read in step 2 are all that there will be.
2. Write the rows to files, also those on branches of staged blocks; then record the folder in the ledger.
3. Remove the branches, and delete the rows in one commit.
4. One transaction: abandon the blocks, settle the cut, record the epoch. If the ledger has that epoch already, another
   process may have published, and everything is repeated.

A process that lost its lease and does not know it can write more files, which are not recorded, and delete rows with
numbers that are not used again: an item is recorded only above the bound. It cannot settle the cut, nor raise the
epoch: its fence is lower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce

from pyspark.sql import DataFrame

from strandline.core import failpoints
from strandline.core.errors import FailedError
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN, Block, BlockKind, Dataset, ItemKind, Reserved, Seq, SeqRange, SnapshotId
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.row_delete import delete
from strandline.ingest.context import IngestContext
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import cuts
from strandline.ledger.replicate.cuts import PreparedCut
from strandline.read import rollback
from strandline.read.settled_view import check_table
from strandline.replicate.take_over.cut_plan import CutPlan, plan_cut
from strandline.replicate.take_over.cut_rows_files import CutRowsFiles, folder_of, with_batches, write_rows
from strandline.storage.objects import open_objects

RANGES_MAX = 500  # in a condition that lists every range; more are in a view
_VIEW = "strandline_cut_out"


def carry_out_cut(
    work: IngestContext, dataset: Dataset, block: Reserved, numbered: NumberedCut, *, behind_upto: Seq | None = None
) -> bool:
    """Carries out the cut of `block`, which this process has taken. Returns False if it must wait for lower blocks, or
    if another process has taken it. `behind_upto`: as in `plan_cut`. Raises BlockLost if another process has taken it
    before anything is changed, and WatermarkMoved and ResyncNeeded: then the caller tries again."""
    plan, _ = _plan(work, dataset, numbered, behind_upto)
    if plan.waits_for:
        return False
    check_own = partial(cuts.check_held, held=block)
    prepared = prepare_cut(work, dataset, block, numbered, check_own=check_own, behind_upto=behind_upto)
    return cuts.settle(work.ledger, work.witness, dataset, block, numbered, epoch=prepared.epoch)


def prepare_cut(
    work: IngestContext,
    dataset: Dataset,
    block: Reserved,
    numbered: NumberedCut,
    *,
    check_own: Callable[[Connection], None],
    behind_upto: Seq | None = None,
) -> PreparedCut:
    """All steps before the transaction. A promotion calls it for each recorded cut, without waiting for lower blocks,
    and settles all of them in its own transaction with `cuts.settle_prepared`. `check_own`: as in `raise_epoch`."""
    check_table(work.ledger, work.tables, work.lake, dataset)
    epoch = raise_epoch(work, dataset, check_own)
    plan, below = _plan(work, dataset, numbered, behind_upto)
    with _condition(work, dataset, plan.rows) as condition:
        written = _set_aside(work, dataset, numbered, plan, below, condition)
        if written is not None:
            with work.ledger.write() as connection:
                cuts.record_cut_folder(
                    connection, dataset, number=numbered.number, place=written.place, rows=written.rows,
                    files=len(written.files),
                )  # fmt: skip
            failpoints.hit("cut.after_record")
        _remove(work, dataset, plan, condition)
    return PreparedCut(dataset, block, numbered, epoch)


def raise_epoch(work: IngestContext, dataset: Dataset, check_own: Callable[[Connection], None]) -> int:
    """Raises the table's epoch above the ledger's, and returns it. Until the ledger has recorded it, no process can
    publish to the table or carry out a purge. `check_own` raises if the cut, or the promotion, is another process's by
    now: nobody would record the epoch that this one raises."""
    found = work.tables.view(dataset.name).epoch
    with work.ledger.write() as connection:
        known = sequence.check(connection, work.witness).epoch
        check_own(connection)
    # What an attempt that died has raised is not raised again: two that go on must come to the same epoch.
    epoch = max(known + 1, found)
    work.tables.raise_epoch(dataset.name, epoch)
    failpoints.hit("cut.after_epoch")
    return epoch


def _plan(
    work: IngestContext, dataset: Dataset, numbered: NumberedCut, behind_upto: Seq | None
) -> tuple[CutPlan, Sequence[Block]]:
    with work.ledger.read() as connection:
        below = cuts.blocks_below(connection, dataset.id, numbered)
        later = [c.at for c in cuts.open_cuts(connection, dataset.id) if c.at.number > numbered.number]
    return plan_cut(numbered, below, later, behind_upto=behind_upto), below


@contextmanager
def _condition(work: IngestContext, dataset: Dataset, rows: Sequence[SeqRange]) -> Iterator[str | None]:
    """The SQL condition for the table's rows that must go; None if there can be none."""
    if not rows:
        yield None
        return
    if len(rows) <= RANGES_MAX:
        yield " OR ".join(f"{SEQ_COLUMN} BETWEEN {r.lo} AND {r.hi}" for r in rows)
        return
    view, spark = f"{_VIEW}_{dataset.id}", work.tables.spark
    spark.createDataFrame([(int(r.lo), int(r.hi)) for r in rows], "lo long, hi long").createOrReplaceTempView(view)
    try:
        within = f"{SEQ_COLUMN} BETWEEN {rows[0].lo} AND {rows[-1].hi}"
        yield f"{within} AND EXISTS (SELECT 1 FROM {view} out WHERE {SEQ_COLUMN} BETWEEN out.lo AND out.hi)"
    finally:
        spark.catalog.dropTempView(view)


def _set_aside(
    work: IngestContext,
    dataset: Dataset,
    numbered: NumberedCut,
    plan: CutPlan,
    below: Sequence[Block],
    condition: str | None,
) -> CutRowsFiles | None:
    """Writes the rows that must go to files. None if there are none."""
    view = work.tables.view(dataset.name)
    frames = [_staged(work, dataset, snapshot, rows) for snapshot, rows in _on_branches(work, plan, view)]
    if condition is not None and view.main is not None:
        frames.append(work.tables.spark.table(in_spark(dataset.name)).where(condition))
    if not frames:
        return None
    with explaining(f"the rows of {dataset.name} that are cut out cannot be read"):
        rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
        if rows.isEmpty():
            return None
    # A recovered range overlaps the blocks that were found again, and has no batch.
    known = [b.head for b in below if b.head.item is ItemKind.SEGMENT and b.head.kind is not BlockKind.RECOVERED]
    batches = [(head.rows, head.batch_id) for head in known]
    about = {
        "lake": work.lake, "dataset": dataset.name, "dataset_id": dataset.uuid, "cut": int(numbered.number),
        "term": numbered.cut.term, "above": int(numbered.cut.above),
    }  # fmt: skip
    folder = folder_of(dataset, numbered.number)
    written = write_rows(with_batches(rows, batches), open_objects(work.config), folder, about)
    failpoints.hit("cut.after_files")
    return written


def _on_branches(work: IngestContext, plan: CutPlan, view: TableView) -> list[tuple[SnapshotId, SeqRange]]:
    """Staged blocks that are cut out and not published, with their snapshots. No sender got an answer for them."""
    found = []
    for staged in plan.staged:
        is_published = view.published_as(work.wap(staged.head)) is not None
        if staged.branch in view.refs and staged.snapshot in view.snapshots and not is_published:
            found.append((staged.snapshot, staged.head.rows))
    return found


def _staged(work: IngestContext, dataset: Dataset, snapshot: SnapshotId, rows: SeqRange) -> DataFrame:
    return work.tables.read(dataset.name, snapshot).where(f"{SEQ_COLUMN} BETWEEN {rows.lo} AND {rows.hi}")


def _remove(work: IngestContext, dataset: Dataset, plan: CutPlan, condition: str | None) -> None:
    tables = work.tables
    first = [head.rows.lo for head in plan.out]
    tables.remove_branches(dataset.name, lambda view: [name for lo in first for name in view.branches_of(lo)])
    failpoints.hit("cut.after_branches")
    if condition is None:
        return
    delete(tables, dataset.name, condition)
    failpoints.hit("cut.after_delete")
    with explaining(f"the rows of {dataset.name} cannot be counted"):
        left = tables.spark.table(in_spark(dataset.name)).where(condition).count()
    if left:
        raise FailedError(
            f"{dataset.name}: {plural(left, 'row')} with numbers that were cut out came in meanwhile",
            hint="The next pass sets them aside, too.",
        )
    rollback.move_tag(work.ledger, tables, dataset)
