"""Discards the rows of a purge that sinks of this site had refused, when it led: their content is in quarantine.

The leader has judged them by the condition of the purge, which a follower does not know. A follower judges by sequence
number: in the ranges of the purge, it discards those that the leader no longer has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import ExitStack

from pyspark.sql import functions as F

from strandline.core.types import SEQ_COLUMN, Dataset, Seq, SeqRange
from strandline.iceberg.spark.java_errors import explaining
from strandline.ledger.deliver import sinks
from strandline.maintain.context import without_deliverer
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.term_spans import term_spans

log = logging.getLogger(__name__)


def discard_refused_rows(context: FollowContext, dataset: Dataset, ranges: Sequence[SeqRange]) -> None:
    """`ranges`: those of the purge. Can be repeated."""
    maintain = context.parts.maintenance.context
    known = context.ledger.query(sinks.of_dataset, dataset.id)
    if not known and not maintain.quarantine.of_dataset(dataset):
        return
    with ExitStack() as stack:
        for record in known:  # a deliverer from when this site led may still be quarantining rows
            stack.enter_context(without_deliverer(maintain, record))
        refused = [q for q in maintain.quarantine.of_dataset(dataset) if any(q.number in r for r in ranges)]
        gone = _gone_at_leader(context, dataset, {q.number for q in refused})
        for left in maintain.quarantine.discard(dataset, {q.id for q in refused if q.number in gone}):
            log.warning("the purge of %s leaves a row in quarantine: %s", dataset.name, left)


def _gone_at_leader(context: FollowContext, dataset: Dataset, numbers: Collection[Seq]) -> set[Seq]:
    """Those of the sequence numbers that the leader no longer has."""
    if not numbers:
        return set()
    tables, kept = context.work.tables, set()
    one_row = tables.spark.range(1)
    wanted = F.broadcast(one_row.select(F.explode(F.lit(sorted(map(int, numbers)))).alias(SEQ_COLUMN)))
    within = SeqRange(min(numbers), max(numbers))
    for rows in term_spans((SeqRange(n, n) for n in numbers), within):
        with (
            context.source.numbers(tables, dataset.uuid, rows) as at_leader,
            explaining(f"the refused rows of {dataset.name} cannot be compared with the leader's"),
        ):
            kept |= {Seq(r[0]) for r in at_leader.join(wanted, SEQ_COLUMN, "left_semi").collect()}
    return set(numbers) - kept
