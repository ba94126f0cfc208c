"""Carries a purge over: of its ranges, the follower deletes what the leader no longer has.

Every lower block is settled by then, and whatever is fetched later does not have the rows. Every step can be repeated:
the range is recorded in the ledger and on the table before rows are deleted, then snapshots that show them are expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core import failpoints
from strandline.core.audit_events import Event
from strandline.core.types import SEQ_COLUMN, Dataset, Seq, SeqRange
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.metadata.table_metadata import RecordedPurge
from strandline.iceberg.spark import floor as table_floor
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.table_change import check_epoch
from strandline.ledger import audit
from strandline.ledger.deliver import losses
from strandline.ledger.ingest import published_blocks, sequence
from strandline.maintain.expire import expire
from strandline.maintain.expire_plan import ExpireOptions
from strandline.read import rollback
from strandline.replicate.context import FollowContext
from strandline.replicate.term_spans import term_spans

_VIEW = "strandline_purged_numbers"


def carry_out_purge(context: FollowContext, dataset: Dataset, number: Seq, ranges: Sequence[SeqRange]) -> None:
    owned = context.ledger.query(published_blocks.owned_ranges, dataset.id)
    for rows in (span for r in ranges for span in term_spans(owned, r)):
        with context.source.numbers(context.work.tables, dataset.uuid, rows) as kept:
            _delete(context, dataset, number, rows, kept)
    failpoints.hit("follow.after_purge")
    expire(context.maintenance(), dataset, ExpireOptions(timedelta(0), 1))


def _delete(context: FollowContext, dataset: Dataset, number: Seq, rows: SeqRange, kept: DataFrame) -> None:
    tables = context.work.tables
    here = tables.spark.table(in_spark(dataset.name)).select(SEQ_COLUMN)
    inside = f"{SEQ_COLUMN} BETWEEN {rows.lo} AND {rows.hi}"
    gone = here.where(inside).join(kept, SEQ_COLUMN, "left_anti").persist()
    try:
        measures = (F.count("*").alias("rows"), F.min(SEQ_COLUMN).alias("lo"), F.max(SEQ_COLUMN).alias("hi"))
        with explaining(f"the purged rows of {dataset.name} cannot be found"):
            found = gone.agg(*measures).collect()[0]
        if not found["rows"]:
            return
        within = SeqRange(Seq(found["lo"]), Seq(found["hi"]))
        epoch = _record(context, dataset, within, found["rows"])
        failpoints.hit("follow.after_purge_record")
        table_floor.write_purge(tables, dataset.name, RecordedPurge(within, found["rows"], int(number)))
        check_epoch(tables.view(dataset.name), epoch, "nothing was deleted")
        view = f"{_VIEW}_{dataset.id}"
        gone.createOrReplaceTempView(view)
        table_floor.delete(tables, dataset.name, f"{inside} AND {SEQ_COLUMN} IN (SELECT {SEQ_COLUMN} FROM {view})")
        tables.spark.catalog.dropTempView(view)
        rollback.move_tag(context.ledger, tables, dataset)
    finally:
        gone.unpersist()


def _record(context: FollowContext, dataset: Dataset, within: SeqRange, count: int) -> int:
    with context.ledger.write() as connection:
        counter = sequence.check(connection, context.witness)
        losses.add_purge(connection, dataset.id, within, count)
        audit.record(
            connection, Event.PURGE_CARRIED_OVER, dataset=dataset.name, rows=count, first=within.lo, last=within.hi
        )
        return counter.epoch
