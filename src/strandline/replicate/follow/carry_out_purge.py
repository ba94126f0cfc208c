"""Carries out a purge of the leader: in its ranges, deletes the follower's rows that the leader no longer has.

All lower blocks are settled by then, and rows that are fetched later are already purged at the leader. Each step can be
repeated: record the range in the ledger and on the table, delete the rows, expire the snapshots that still have them.
Rows that only the leader's retention has deleted are in none of the ranges (docs/adr/0070, rule 19), and stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.errors import BlockLost
from strandline.core.purged_ranges import bound, clip, in_ranges, span_of
from strandline.core.records.audit_events import Event
from strandline.core.types import SEQ_COLUMN, Dataset, Reserved, Seq, SeqRange
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.metadata.table_metadata import RecordedPurge
from strandline.iceberg.spark import floor as table_floor
from strandline.iceberg.spark.java_errors import explaining
from strandline.ledger import audit
from strandline.ledger.deliver import losses
from strandline.ledger.ingest import blocks, published_blocks, sequence
from strandline.ledger.replicate import sites
from strandline.maintain.expire import expire
from strandline.maintain.expire_plan import ExpireOptions
from strandline.read import rollback
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.discard_refused_rows import discard_refused_rows
from strandline.replicate.follow.term_spans import term_spans

_VIEW = "strandline_purged_numbers"


def carry_out_purge(context: FollowContext, dataset: Dataset, block: Reserved, ranges: Sequence[SeqRange]) -> None:
    """`block` is the purge's, which this process has taken. Raises BlockLost if another process has it by now,
    WatermarkMoved if this site is about to lead, and Superseded if it leads: then nothing is deleted."""
    owned = context.ledger.query(published_blocks.owned_ranges, dataset.id)
    named = bound(ranges)
    for part in term_spans(owned, span_of(named)) if named else ():
        if inside := clip(named, part):
            _delete(context, dataset, block, inside)
    failpoints.hit("follow.after_purge")
    discard_refused_rows(context, dataset, ranges)
    expire(context.parts.maintenance.context, dataset, ExpireOptions(timedelta(0), 1))


def _delete(context: FollowContext, dataset: Dataset, block: Reserved, ranges: Sequence[SeqRange]) -> None:
    table = context.work.tables.spark.table(in_spark(dataset.name)).select(SEQ_COLUMN)
    own = table.where(in_ranges(ranges))
    _, within = _count(dataset, own)
    if within is not None:  # else they came after the purge, or are gone: the leader is not asked
        with context.source.numbers(context.work.tables, dataset.uuid, within) as at_leader:
            _delete_gone(context, dataset, block, ranges, own.join(at_leader, SEQ_COLUMN, "left_anti"))


def _count(dataset: Dataset, rows: DataFrame) -> tuple[int, SeqRange | None]:
    """How many they are, and from the first to the last."""
    measures = (F.count("*").alias("rows"), F.min(SEQ_COLUMN).alias("lo"), F.max(SEQ_COLUMN).alias("hi"))
    with explaining(f"the purged rows of {dataset.name} cannot be found"):
        found = rows.agg(*measures).collect()[0]
    return found["rows"], SeqRange(Seq(found["lo"]), Seq(found["hi"])) if found["rows"] else None


def _delete_gone(
    context: FollowContext, dataset: Dataset, block: Reserved, ranges: Sequence[SeqRange], gone: DataFrame
) -> None:
    tables = context.work.tables
    gone.persist()
    try:
        count, within = _count(dataset, gone)
        if within is None:
            return
        epoch = _record(context, dataset, block, within, count)
        failpoints.hit("follow.after_purge_record")
        recorded = RecordedPurge.of(clip(ranges, within), count, int(block.head.rows.lo))
        table_floor.write_purge(tables, dataset.name, recorded)
        inside = f"{SEQ_COLUMN} BETWEEN {within.lo} AND {within.hi}"
        view = f"{_VIEW}_{dataset.id}"
        gone.select(F.col(SEQ_COLUMN).alias("number")).createOrReplaceTempView(view)
        # Not IN: where rows are kept that do not match, Spark would compare each of them with every number, because of
        # what NOT IN says about null.
        condition = f"{inside} AND EXISTS (SELECT 1 FROM {view} AS gone WHERE gone.number = {SEQ_COLUMN})"
        # A promotion that gives this purge up raises the epoch, so that this delete fails: there would be no purge item
        # for the other followers.
        table_floor.delete(tables, dataset.name, condition, epoch=epoch)
        tables.spark.catalog.dropTempView(view)
        rollback.move_tag(context.ledger, tables, dataset)
    finally:
        gone.unpersist()


def _record(context: FollowContext, dataset: Dataset, block: Reserved, within: SeqRange, count: int) -> int:
    with context.ledger.write() as connection:
        counter = sequence.check(connection, context.witness)
        sites.check_may_commit(connection, offered=True)
        current = blocks.get(connection, block.head.id)
        if not isinstance(current, Reserved) or current.fence != block.fence:
            raise BlockLost(f"{dataset.name}: another process has purge {block.head.rows.lo}, or it was given up")
        losses.add_purge(connection, dataset.id, within, count)
        audit.record(
            connection, Event.PURGE_CARRIED_OVER, dataset=dataset.name, rows=count, first=within.lo, last=within.hi
        )
        return counter.epoch
