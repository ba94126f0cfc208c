"""Carries out a cut: rows that the new leader has not are set aside in files and removed from the table; then one
transaction abandons their blocks and settles the cut.

Durable steps, each of which can be repeated:

1. The epoch on the table is raised above the ledger's. From here on nobody publishes to this table, however late: a
   publisher has the ledger's epoch, which is lower. So what is read next is everything.
2. Rows are written to files, those on branches of staged blocks, too; then the ledger records where.
3. The branches are removed, and the rows are deleted by one commit.
4. One transaction: blocks abandoned, the cut settled, the epoch recorded. If the ledger has reached that epoch
   meanwhile, somebody may have published since, and all of it begins again.

A process that was given up for dead can write more files, which nobody names, and delete rows with numbers that never
come back: an item is recorded only above the bound. It settles nothing: its fence is lower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

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
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import cuts
from strandline.ledger.replicate.cuts import PreparedCut
from strandline.read import rollback
from strandline.read.settled_view import check_table
from strandline.replicate.take_over.cut_plan import CutPlan, plan_cut
from strandline.replicate.take_over.cut_rows_files import Written, folder_of, with_batches, write_rows
from strandline.storage.objects import open_objects

RANGES_MAX = 500  # in a condition that lists every range; more are in a view
_VIEW = "strandline_cut_out"


def carry_out_cut(
    work: IngestContext, dataset: Dataset, held: Reserved, at: NumberedCut, *, behind_upto: Seq | None = None
) -> bool:
    """All of it. False if lower blocks are open that it does not cut out, or if the cut is no longer ours. `held` is
    the cut's block, taken. `behind_upto`: as in `plan_cut`. Raises WatermarkMoved and ResyncNeeded: then again."""
    plan, _ = _plan(work, dataset, at, behind_upto)
    if plan.waits_for:
        return False
    prepared = prepare_cut(work, dataset, held, at, behind_upto=behind_upto)
    return cuts.settle(work.ledger, work.witness, dataset, held, at, epoch=prepared.epoch)


def prepare_cut(
    work: IngestContext, dataset: Dataset, block: Reserved, at: NumberedCut, *, behind_upto: Seq | None = None
) -> PreparedCut:
    """Everything before the transaction. A promotion does this for each recorded cut, whatever is still `reserved`
    below it, and settles them all in its own transaction with `cuts.settle_prepared`."""
    check_table(work.ledger, work.tables, work.lake, dataset)
    epoch = raise_epoch(work, dataset)
    plan, below = _plan(work, dataset, at, behind_upto)
    with _condition(work, dataset, plan.rows) as condition:
        written = _set_aside(work, dataset, at, plan, below, condition)
        if written is not None:
            with work.ledger.write() as connection:
                cuts.record_cut_folder(
                    connection, dataset, number=at.number, place=written.place, rows=written.rows,
                    files=len(written.files),
                )  # fmt: skip
            failpoints.hit("cut.after_record")
        _remove(work, dataset, plan, condition)
    return PreparedCut(dataset, block, at, epoch)


def raise_epoch(work: IngestContext, dataset: Dataset) -> int:
    """Above the ledger's: nobody publishes to the table, or carries a purge out, until the ledger has recorded it."""
    with work.ledger.write() as connection:
        known = sequence.check(connection, work.witness).epoch
    epoch = max(known, work.tables.view(dataset.name).epoch) + 1
    work.tables.raise_epoch(dataset.name, epoch)
    failpoints.hit("cut.after_epoch")
    return epoch


def _plan(
    work: IngestContext, dataset: Dataset, at: NumberedCut, behind_upto: Seq | None
) -> tuple[CutPlan, Sequence[Block]]:
    with work.ledger.read() as connection:
        below = cuts.blocks_below(connection, dataset.id, at)
        later = [c.at for c in cuts.open_cuts(connection, dataset.id) if c.at.number > at.number]
    return plan_cut(at, below, later, behind_upto=behind_upto), below


@contextmanager
def _condition(work: IngestContext, dataset: Dataset, rows: Sequence[SeqRange]) -> Iterator[str | None]:
    """In SQL, for the rows of the table that do not stay; None if no number of it goes."""
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
    work: IngestContext, dataset: Dataset, at: NumberedCut, plan: CutPlan, below: Sequence[Block], condition: str | None
) -> Written | None:
    """None if there is no such row."""
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
    # A recovered range lies over the blocks that were found again, and knows no batch.
    known = [b.head for b in below if b.head.item is ItemKind.SEGMENT and b.head.kind is not BlockKind.RECOVERED]
    batches = [(head.rows, head.batch_id) for head in known]
    about = {
        "lake": work.lake, "dataset": dataset.name, "dataset_id": dataset.uuid, "cut": int(at.number),
        "term": at.cut.term, "above": int(at.cut.above),
    }  # fmt: skip
    folder = folder_of(dataset, at.number)
    written = write_rows(with_batches(rows, batches), open_objects(work.config), folder, about)
    failpoints.hit("cut.after_files")
    return written


def _on_branches(work: IngestContext, plan: CutPlan, view: TableView) -> list[tuple[SnapshotId, SeqRange]]:
    """Staged blocks that are cut out and not published. Nobody was told that they are safe, but their rows are here."""
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
