"""Numbers rows that were in a table before it became a dataset, or that foreign writers add without a number.

The rows are numbered in bounded passes. Each pass has a block of its own, which records the pass's input files. Such a
block is not abandoned just because its lease has expired: its commit lands in main without the ledger. The commit needs
the block's branch, and removes it. So a process that takes over a crashed pass removes the branch first, checks whether
the pass landed, and numbers the same files again. The resync does the same with the sequence numbers that a restored
ledger does not know.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.errors import BlockLost, FailedError, RefusedError, StrandlineError
from strandline.core.types import INTERNAL_COLUMNS, SEQ_COLUMN, BlockKind, Dataset, NumberedRows, Reserved
from strandline.iceberg.metadata.lineage import Memory
from strandline.iceberg.spark import rewrite
from strandline.iceberg.spark.number_bounds import new_files
from strandline.ingest import stamp
from strandline.ingest.context import IngestContext
from strandline.ingest.reserve_above_foreign import reserve_above_foreign
from strandline.ingest.resync.run import with_resync
from strandline.ledger.ingest import blocks, sequence
from strandline.read import rollback

OnStep = Callable[[int, int], None]  # rows that have got a sequence number, and rows to number at most


def number_rows(work: IngestContext, dataset: Dataset, *, on_step: OnStep | None = None) -> NumberedRows:
    """Runs until no row in main lacks a sequence number."""
    rows = steps = 0
    for crashed in _open_passes(work, dataset):
        rows += _take_over(work, dataset, crashed)
    skip: set[str] = set()
    total = 0
    if on_step is not None:
        total = rows + rewrite.unnumbered_rows(work.tables, dataset.name)
        on_step(rows, total)
    while True:
        group = rewrite.unnumbered_group(
            work.tables, dataset.name, rows_max=work.settings.adopt_rows_max, skip=frozenset(skip)
        )
        if group is None:
            return NumberedRows(rows, steps)
        try:
            done = _number_group(work, dataset, group)
        except rewrite.FilesGone:
            continue  # compacted meanwhile: list the files again
        if done == 0:
            skip.update(group.paths)  # files without a null count, in which all rows have numbers
            continue
        rows += done
        steps += 1
        if on_step is not None:
            on_step(rows, max(rows, total))


def _open_passes(work: IngestContext, dataset: Dataset) -> list[Reserved]:
    open_blocks = work.ledger.query(blocks.open_blocks, dataset.id)
    return [b for b in open_blocks if isinstance(b, Reserved) and b.head.kind is BlockKind.ADOPTED]


def _take_over(work: IngestContext, dataset: Dataset, crashed: Reserved) -> int:
    """Settles a pass whose commit landed, or numbers its files again. Returns how many rows it numbered. Raises
    RefusedError while the pass's lease is valid."""
    block = blocks.take_over(work.ledger, crashed, lease_seconds=work.settings.lease_seconds)
    if block is None:
        raise RefusedError(
            f"another process is numbering {dataset.name} (block {crashed.head.rows})",
            hint=f"If it has died, its lease ends within {work.settings.lease_seconds} s.",
        )
    work.tables.remove_branch(dataset.name, block.head.branch)  # from now on, a commit in progress cannot land
    if settle_if_landed(work, dataset, block):
        return 0
    paths = work.ledger.query(blocks.input_files, block.head.id)
    done = 0
    group = rewrite.unnumbered_group(work.tables, dataset.name, rows_max=0, only=paths)
    if group is not None:
        try:
            done = _number_group(work, dataset, group)
        except rewrite.FilesGone as e:
            # A compaction has replaced the files: the loop of `number_rows` finds the rows in others. Or the crashed
            # pass has landed: if it was paused before it created its branch, it may create the branch later, and land
            # as long as the table has its files.
            if rewrite.unnumbered_group(work.tables, dataset.name, rows_max=0, only=paths) is not None:
                raise BlockLost(
                    f"another process has taken over the numbering of {dataset.name}",
                    hint="Run the command again when that process has ended.",
                ) from e
    if not settle_if_landed(work, dataset, block):
        with_resync(work, lambda: blocks.abandon(work.ledger, work.witness, block, "its pass was taken over"))
    return done


def settle_if_landed(work: IngestContext, dataset: Dataset, block: Reserved) -> bool:
    """Marks the block as published if its commit is in main. False if it is not, or if another process has the
    block."""
    view = work.tables.view(dataset.name)
    landed = view.published_as(work.wap(block.head))
    # Others can write any sequence number, so rows are evidence only if history is incomplete.
    rows = block.head.rows
    if landed is None and (view.chain_reaches(None) or work.tables.count(dataset.name, rows, view.main) == 0):
        return False
    count, at = len(rows), view.settled
    return blocks.mark_published(work.ledger, block, row_count=count, snapshot=landed, settled=at)


def _give_up(work: IngestContext, dataset: Dataset, block: Reserved) -> None:
    """Abandons the block unless its pass has landed. Without its branch the pass cannot land later, and an open block
    would hold the seal."""
    work.tables.remove_branch(dataset.name, block.head.branch)
    if not settle_if_landed(work, dataset, block):
        with_resync(work, lambda: blocks.abandon(work.ledger, work.witness, block, "it could not be committed"))


def _recall(work: IngestContext, dataset: Dataset, block: Reserved) -> tuple[int, Memory]:
    """The ledger's epoch, and what the ledger knows of the table. Raises BlockLost if the ledger was restored from a
    copy that does not have the block."""
    with work.ledger.read() as connection:
        stored = blocks.get(connection, block.head.id)
        if stored is None or not blocks.is_same(stored.head, block.head):
            raise BlockLost(f"the ledger no longer knows block {block.head.rows}: it was restored from an older copy")
        return sequence.read(connection).epoch, rollback.recall(connection, dataset)


def _number_group(work: IngestContext, dataset: Dataset, group: rewrite.FileGroup) -> int:
    with rewrite.reading(work.tables, group) as df:
        columns = [c for c in df.columns if c not in INTERNAL_COLUMNS]
        is_unnumbered = F.col(SEQ_COLUMN).isNull()
        live = df.count() if group.has_deletes else group.records
        pinned = stamp.pin(work.tables.spark, df.where(is_unnumbered), always=True)
        counted = stamp.count(pinned, columns, digest=False)
        if counted.rows == 0:
            return 0
        wanted = blocks.NewBlock(
            dataset.id, counted.rows, f"adopt-{uuid.uuid4().hex}", None, BlockKind.ADOPTED, group.paths
        )
        block, _ = reserve_above_foreign(work, dataset, wanted)
        if not isinstance(block, Reserved):
            raise FailedError("a new block is not reserved")
        failpoints.hit("adopt.after_reserve")
        with work.renewed(block):
            try:
                epoch, memory = _recall(work, dataset, block)
                work.tables.create_branch(dataset.name, block.head.branch)
                by = [df.schema[name] for name in dataset.deliver_by]
                stamped = stamp.stamp(pinned, columns, block.head.rows, counted, by)
                files = rewrite.write(work.tables, group, stamped)
                stamp.check_staged(new_files(work.tables.java, group.table, files), block.head.rows, counted)
                numbered = df.where(~is_unnumbered)
                if not numbered.isEmpty():
                    files = [*files, *rewrite.write(work.tables, group, numbered)]
                rewrite.check_rows(group, files, read=live)
                work.ledger.write_right.obtain()
                work.ledger.write_right.check()  # this commit is the commit point of an adopted block
                rewrite.commit(
                    work.tables, group, files, work.wap(block.head), block.head.branch, epoch=epoch,
                    may_move_tag=rollback.may_move_tag(work.ledger, work.tables, dataset, memory),
                )  # fmt: skip
            except (StrandlineError, rewrite.FilesGone):
                _give_up(work, dataset, block)
                raise
    if not settle_if_landed(work, dataset, block):
        raise FailedError(f"numbering {block.head.rows} landed, but another process has the block")
    failpoints.hit("adopt.after_mark")
    return counted.rows
