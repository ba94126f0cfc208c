"""Carries out a purge of the leader: in its ranges, deletes the follower's rows that the leader no longer has.

All lower blocks are settled by then, and rows that are fetched later are already purged at the leader. Each step can be
repeated: record the range in the ledger and on the table, delete the rows, expire the snapshots that still have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.errors import BlockLost
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
from strandline.replicate.follow.term_spans import term_spans

_VIEW = "strandline_purged_numbers"


def carry_out_purge(context: FollowContext, dataset: Dataset, block: Reserved, ranges: Sequence[SeqRange]) -> None:
    """`block` is the purge's, which this process has taken. Raises BlockLost if another process has it by now,
    WatermarkMoved if this site is about to lead, and Superseded if it leads: then nothing is deleted."""
    owned = context.ledger.query(published_blocks.owned_ranges, dataset.id)
    for rows in (span for r in ranges for span in term_spans(owned, r)):
        with context.source.numbers(context.work.tables, dataset.uuid, rows) as at_leader:
            _delete(context, dataset, block, rows, at_leader)
    failpoints.hit("follow.after_purge")
    expire(context.parts.maintenance.context, dataset, ExpireOptions(timedelta(0), 1))


def _delete(context: FollowContext, dataset: Dataset, block: Reserved, rows: SeqRange, at_leader: DataFrame) -> None:
    tables = context.work.tables
    own = tables.spark.table(in_spark(dataset.name)).select(SEQ_COLUMN)
    inside = f"{SEQ_COLUMN} BETWEEN {rows.lo} AND {rows.hi}"
    gone = own.where(inside).join(at_leader, SEQ_COLUMN, "left_anti").persist()
    try:
        measures = (F.count("*").alias("rows"), F.min(SEQ_COLUMN).alias("lo"), F.max(SEQ_COLUMN).alias("hi"))
        with explaining(f"the purged rows of {dataset.name} cannot be found"):
            found = gone.agg(*measures).collect()[0]
        if not found["rows"]:
            return
        within = SeqRange(Seq(found["lo"]), Seq(found["hi"]))
        epoch = _record(context, dataset, block, within, found["rows"])
        failpoints.hit("follow.after_purge_record")
        table_floor.write_purge(tables, dataset.name, RecordedPurge(within, found["rows"], int(block.head.rows.lo)))
        view = f"{_VIEW}_{dataset.id}"
        gone.createOrReplaceTempView(view)
        condition = f"{inside} AND {SEQ_COLUMN} IN (SELECT {SEQ_COLUMN} FROM {view})"
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
