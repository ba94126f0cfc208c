"""Reads a few rows that no sender has sent yet: they show whether a sink that refuses a chunk takes any row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from strandline.core.types import SEQ_COLUMN, Seq, SeqRange, before
from strandline.deliver.context import settled
from strandline.deliver.plan.planner import prepare
from strandline.deliver.send.build_spark import KEPT, cargo_of, owned_rows, prepare_rows
from strandline.deliver.sink_options import parse_common
from strandline.deliver.sink_session import SinkRun
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.row_text import lane_of
from strandline.ledger.ingest import blocks

if TYPE_CHECKING:
    import pyarrow as pa

# Of the oldest rows and of the newest ones: bad rows often stand side by side, and a rule may be about the age.
_EACH_MAX = 8
_CHUNKS_MAX = 64


def read_undelivered(
    run: SinkRun, options: Mapping[str, str], unsent: Sequence[tuple[str, SeqRange]]
) -> pa.Table | None:
    """Rows of these chunks and rows without a plan, in the sink's form, with their partitions; or None."""
    sealed = run.context.ledger.query(blocks.sealed, run.dataset.id)
    planned = run.record.planned or 0
    if sealed is None or (not unsent and sealed <= planned):
        return None
    if len(unsent) > _CHUNKS_MAX:
        ordered = sorted(unsent, key=lambda chunk: chunk[1].lo)
        unsent = ordered[: _CHUNKS_MAX // 2] + ordered[-_CHUNKS_MAX // 2 :]
    lowest = min([Seq(planned + 1), *(rows.lo for _, rows in unsent)])
    source = settled(run.context, run.dataset, before(lowest), sealed)
    cargo = cargo_of(run.sink(options).form, prepare(run, source, options), parse_common(options))
    lane, number = lane_of(source.df), F.col(SEQ_COLUMN)
    chosen = [(lane == partition) & number.between(rows.lo, rows.hi) for partition, rows in unsent]
    rows = prepare_rows(source.df.where(reduce(or_, chosen, number > planned)), cargo)
    if cargo.where is not None:
        rows = rows.where(F.col(KEPT).isNotNull())
    ends = rows.orderBy("_sl_number").limit(_EACH_MAX), rows.orderBy(F.desc("_sl_number")).limit(_EACH_MAX)
    with run.stops_when_called_off(), explaining("rows to try cannot be read"):
        found = ends[0].union(ends[1]).toArrow()
    if found.num_rows == 0:
        return None
    if cargo.where is not None:
        found = owned_rows(found)
    names = list(cargo.columns) if cargo.form == "rows" else ["_sl_number", "line"]
    return found.select(names).rename_columns([SEQ_COLUMN if n == "_sl_number" else n for n in names])
