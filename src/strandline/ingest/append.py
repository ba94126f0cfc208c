"""The only way into a table: `prepare` checks and counts a batch, `commit` reserves, stamps, stages and publishes it.

In between, the caller may check the counts and refuse the batch.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from strandline.core.activity import ActivityKind, Stopwatch
from strandline.core.calling_off import check_not_called_off
from strandline.core.errors import SchemaError, StampMismatch, StrandlineError, UsageError
from strandline.core.sites.replication import route, shard_ids, shard_span
from strandline.core.text.bounded_text import BATCH_ID_BYTES_MAX, check_text
from strandline.core.types import (
    INTERNAL_COLUMNS,
    Abandoned,
    Block,
    Dataset,
    Published,
    Reserved,
    SeqRange,
    ShardId,
    Staged,
    is_reserved,
)
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.stage import WrittenRows, write_rows
from strandline.ingest import stamp
from strandline.ingest.context import IngestContext
from strandline.ingest.digest import ObservedDigest
from strandline.ingest.recover import Recovered, recover_reserved
from strandline.ingest.reserve_above_foreign import reserve_above_foreign
from strandline.ingest.resync.run import with_resync
from strandline.ingest.settle import after_failed_commit, publish_staged
from strandline.ingest.stage import commit_staged, stage_rows
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks
from strandline.read.settled_view import check_table

AppendProgress = Callable[[str, int | None], None]  # the current step, and its number of rows, if known


@dataclass(frozen=True, slots=True)
class Appended:
    batch_id: str
    rows: SeqRange | None  # None for an empty batch, which has no block
    row_count: int
    duplicate: bool  # the batch was ingested before, and this is the outcome of that time
    rejected: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that was checked against its table and counted. No durable step has been taken."""

    dataset: Dataset
    batch_id: str
    source: stamp.Pinned
    columns: list[str]
    counted: stamp.CountedRows
    shard: ShardId
    same_content: bool  # whether a batch with this id in the ledger must have the same rows


def prepare(
    work: IngestContext,
    dataset: Dataset,
    df: DataFrame,
    *,
    batch_id: str | None = None,
    same_content: bool = True,
    rejects: stamp.Rejects | None = None,
    shard: int | None = None,
    count: Callable[[], list[stamp.PartitionCount]] | None = None,
) -> Prepared:
    """Checks and counts a batch. If `same_content` is set, a batch id that is used again must come with the same rows;
    otherwise the id alone decides. `rejects` names the columns that describe rows that do not fit: such rows are
    counted and never written. If `shard` is None, the batch id decides the dataset's shard. `count` counts the
    partitions of the frame, if its source can do that faster than Spark."""
    _check_shard(dataset, shard)
    check_table(work.ledger, work.tables, work.lake, dataset)
    columns = check_columns(work, dataset, df, rejects)
    name = batch_id if batch_id is not None else f"auto-{uuid.uuid4().hex}"
    if batch_id is not None and not batch_id:
        raise SchemaError("a batch id must not be empty")
    check_text("the batch id", name, BATCH_ID_BYTES_MAX)
    same_content = batch_id is not None and same_content
    earlier = work.ledger.query(blocks.of_batch, dataset.id, name) if same_content else None
    pinned = stamp.pin(work.tables.spark, df, rejects=rejects)
    # A repeat is only compared. For other batches, the digest is taken while the rows are written.
    is_repeat = earlier is not None and earlier.head.digest is not None
    if count is None or is_repeat:
        counted = stamp.count(pinned, columns, digest=is_repeat)
    else:
        with explaining("the batch cannot be counted"):
            counted = stamp.counted_by_source(count(), pinned, columns)
    into = route(name, dataset.first_shard, dataset.shards) if shard is None else ShardId(shard)
    return Prepared(dataset, name, pinned, columns, counted, into, same_content)


def _check_shard(dataset: Dataset, shard: int | None) -> None:
    own = shard_ids(dataset.first_shard, dataset.shards)
    if shard is not None and shard not in own:
        raise UsageError(
            f"{dataset.name} has no shard {shard}",
            hint=f"Its shards: {shard_span(own)}. If none is given, the batch id decides.",
        )


def commit(
    work: IngestContext,
    batch: Prepared,
    *,
    received: bool = False,
    last_check: Callable[[], None] = lambda: None,
    progress: AppendProgress = lambda step, rows: None,
) -> Appended:
    """Appends all rows of the batch once, or none. Returns when the rows are published and recorded.

    A batch of `received` bodies gets a block only while it has not ended in the ledger (otherwise raises BatchEnded).
    `last_check` is called after the rows are staged and before the commit point. If it raises, the batch is
    abandoned."""
    name, counted = batch.batch_id, batch.counted
    if counted.rows == 0:
        return Appended(name, None, 0, duplicate=False, rejected=counted.rejected)
    wanted = blocks.NewBlock(batch.dataset.id, counted.rows, name, counted.digest, received=received, shard=batch.shard)
    watch = Stopwatch(ActivityKind.BATCH, batch.dataset.name)
    try:
        block = _reserve(work, batch.dataset, wanted)
        if isinstance(block, Published):
            _check_same_rows(block, batch)
            watch.report("duplicate")
            return Appended(name, block.head.rows, block.row_count or 0, duplicate=True, rejected=counted.rejected)
        progress("writing", counted.rows)
        published = _write(work, block, batch, last_check, progress)
    except BaseException:
        watch.report("failed")
        raise
    watch.report("published", rows=counted.rows)
    return Appended(name, published.head.rows, counted.rows, duplicate=False, rejected=counted.rejected)


def _check_same_rows(earlier: Published, batch: Prepared) -> None:
    """Raises BatchConflict if the batch was ingested with other rows, perhaps while these were counted."""
    if batch.same_content:
        digest = batch.counted.digest
        if digest is None and earlier.head.digest is not None:
            digest = stamp.count(batch.source, batch.columns, digest=True).digest
        blocks.check_same_batch(earlier, digest)


def check_columns(
    work: IngestContext, dataset: Dataset, df: DataFrame, rejects: stamp.Rejects | None = None
) -> list[str]:
    """The columns of the frame that the dataset has, in the dataset's order. Raises SchemaError if a required column is
    missing, or the dataset does not have one."""
    fields = column_fields(work, dataset).fields
    about_rejects = () if rejects is None else rejects.columns
    given = [f.name for f in df.schema.fields if f.name not in about_rejects]
    if ours := [n for n in given if is_reserved(n)]:
        raise SchemaError(
            f"the rows have a column {ours[0]!r}, which is Strandline's own",
            hint="Rename or drop it. Ingest gives each row its sequence number.",
        )
    names = {f.name for f in fields}
    if unknown := [n for n in given if n not in names]:
        raise SchemaError(
            f"{dataset.name} has no column {unknown[0]!r}",
            hint=f"Its columns: {', '.join(sorted(names))}. Add one with `strandline dataset alter`.",
        )
    if missing := [f.name for f in fields if f.name not in given and not f.nullable]:
        raise SchemaError(f"the rows lack the required column {missing[0]!r}")
    if len(set(given)) != len(given):
        raise SchemaError("the rows have two columns of the same name")
    return [f.name for f in fields if f.name in given]


def _reserve(work: IngestContext, dataset: Dataset, wanted: blocks.NewBlock) -> Reserved | Published:
    """A new block, or the outcome of the block that already has this batch. Waits while that block is in progress."""
    while True:
        block, new = reserve_above_foreign(work, dataset, wanted)
        if new and isinstance(block, Reserved):
            return block
        if (settled := _settle_other(work, dataset, block)) is not None:
            return settled


def _settle_other(work: IngestContext, dataset: Dataset, block: Block) -> Published | None:
    """Settles the block that already has the batch. None if the batch must be tried again, because that block was
    abandoned or is still in progress."""
    match block:
        case Published():
            return block
        case Staged():
            return publish_staged(work, dataset, block)
        case Reserved() if block.lease_until > utc_now():
            check_not_called_off()  # this call has not reserved a block yet
            time.sleep(0.2)  # the block's writer is alive: wait for the outcome
        case Reserved():
            with_resync(work, lambda: recover_reserved(work, dataset, block, Recovered()))
        case Abandoned():
            pass
    return None


def _write(
    work: IngestContext, block: Reserved, batch: Prepared, last_check: Callable[[], None], progress: AppendProgress
) -> Published:
    dataset, head = batch.dataset, block.head
    with work.renewed(block):
        try:
            work.tables.create_branch(dataset.name, head.branch)
            fields = column_fields(work, dataset)
            by = [fields[name] for name in dataset.deliver_by]
            stamped = stamp.stamp(batch.source, batch.columns, head.rows, batch.counted, by)
            written, digest = _write_rows(work, block, batch, stamped)
            snapshot = stage_rows(work, dataset, block, written, digest=digest)
            last_check()
        except StrandlineError as e:
            if not _give_up(work, dataset, block, e):
                return after_failed_commit(work, dataset, head)  # another process has taken the block and settled it
            if stamp.is_mismatch(e):
                raise StampMismatch("the batch grew while it was written", hint=stamp.MISMATCH_HINT) from e
            raise
    progress("publishing", batch.counted.rows)
    return with_resync(work, lambda: commit_staged(work, dataset, block, snapshot, digest=digest))


def _write_rows(
    work: IngestContext, block: Reserved, batch: Prepared, stamped: DataFrame
) -> tuple[WrittenRows, str | None]:
    """Writes the files of the batch. Also returns the digest of the rows, if it is needed and the ledger does not have
    it."""
    observed = ObservedDigest(stamped) if batch.same_content and block.head.digest is None else None
    written = write_rows(work.tables, batch.dataset.name, stamped if observed is None else observed.frame)
    try:
        stamp.check_staged(written.files, block.head.rows, batch.counted)
    except StampMismatch:
        written.discard()
        raise
    if observed is None:
        return written, None
    return written, observed.read() or stamp.count(batch.source, batch.columns, digest=True).digest


def _give_up(work: IngestContext, dataset: Dataset, block: Reserved, why: StrandlineError) -> bool:
    """Abandons the block of a batch that failed before its commit point, so that nobody waits for the lease to expire.
    False if another process has taken the block. If the ledger does not answer, recovery abandons it later."""
    try:
        if not with_resync(work, lambda: blocks.abandon(work.ledger, work.witness, block, why.message[:500])):
            return False
        work.tables.remove_branch(dataset.name, block.head.branch)
    except StrandlineError as e:
        why.add_note(f"block {block.head.rows} stays reserved until its lease ends: {e.message}")
    return True


def column_fields(work: IngestContext, dataset: Dataset) -> T.StructType:
    """The dataset's schema without Strandline's own columns."""
    table = work.tables.spark.table(in_spark(dataset.name)).schema
    return T.StructType([f for f in table.fields if f.name not in INTERNAL_COLUMNS])
