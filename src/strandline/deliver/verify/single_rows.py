"""Single rows in a proof: rows that were never sent, and rows that a sink lacks or has twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core.delivery_types import NOT_PARTITIONED, SinkRecord
from strandline.core.text.wording import plural
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, SeqRange
from strandline.deliver.sink import Address, ChunkRows, Outcome
from strandline.deliver.verify.compare import LakeRows
from strandline.deliver.verify.ranges import Fault, LaneRanges, VerifyFinding
from strandline.deliver.verify.rebuild import WantedChunk
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.row_text import lane_of

if TYPE_CHECKING:
    import pyarrow as pa

NAMED_MAX = 5
STRAYS_MAX = 20
_CANNOT_COUNT = "the rows of the lake cannot be counted"


# --- rows that a sink lacks or has twice ---


@runtime_checkable
class KnowsNumbers(Protocol):
    """An inspector that can say which sequence numbers of a range the sink has."""

    def numbers(self, address: Address, rows: SeqRange) -> pa.Int64Array: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RowDifference:
    """Sequence numbers of a range that the lake has and the sink lacks, or has more than once."""

    missing: tuple[int, ...]
    missing_count: int
    twice: tuple[int, ...]
    twice_count: int


@dataclass(frozen=True)
class NumberComparison:
    """A sender that sends nothing: it checks which of a chunk's sequence numbers the sink has, and how often."""

    inspector: KnowsNumbers

    def send(self, chunk: ChunkRows) -> Outcome:
        import numpy as np

        held = self.inspector.numbers(chunk.address, chunk.range).to_numpy(zero_copy_only=False)
        missing = np.setdiff1d(chunk.rows.column(SEQ_COLUMN).to_numpy(), held)
        values, times = np.unique(held, return_counts=True)
        twice = values[times > 1]
        return cast(
            "Outcome",
            RowDifference(
                tuple(int(n) for n in missing[:NAMED_MAX]),
                len(missing),
                tuple(int(n) for n in twice[:NAMED_MAX]),
                len(twice),
            ),
        )

    def close(self) -> None:
        self.inspector.close()


def in_rows(findings: Sequence[VerifyFinding], answers: Mapping[WantedChunk, object]) -> list[VerifyFinding]:
    """The findings; those about a range name its rows if the comparison could."""
    named = {(w.partition, w.rows): d for w, d in answers.items() if isinstance(d, RowDifference)}
    return [g for f in findings for g in _in_rows(f, named)]


def _in_rows(found: VerifyFinding, named: Mapping[tuple[str, SeqRange], RowDifference]) -> list[VerifyFinding]:
    difference = None if found.range is None else named.get((found.partition, found.range))
    if found.kind is not Fault.CORRUPT or difference is None:
        return [found]
    rows = []
    if difference.missing_count:
        rows.append(replace(found, kind=Fault.MISSING_ROW, what=_numbers(difference.missing, difference.missing_count)))
    if difference.twice_count:
        rows.append(replace(found, kind=Fault.DUPLICATE_ROW, what=_numbers(difference.twice, difference.twice_count)))
    return [replace(r, detail=f"{found.what}: {found.detail}") for r in rows] or [found]


def _numbers(numbers: Sequence[int], count: int) -> str:
    more = f" and {count - len(numbers)} more" if count > len(numbers) else ""
    return f"{'number' if count == 1 else 'numbers'} {', '.join(map(str, numbers))}{more}"


# --- rows that are in no chunk ---


def unsent_rows(
    df: DataFrame,
    record: SinkRecord,
    layouts: Sequence[LaneRanges],
    rebuilt: Mapping[str, Mapping[SeqRange, LakeRows]],
    left_out: Collection[str],
) -> list[VerifyFinding]:
    """Rows up to the watermarks in no chunk: neither sent nor withheld. `left_out` are known lanes without a layout."""
    spans = [LaneSpan(x.lane.partition, x.floor, x.mark) for x in layouts]
    counts = rows_by_lane(df, spans, LaneSpan("", int(record.start or 0), int(record.planned or 0)))
    suspects = []
    for layout in layouts:
        known = _rows_in_chunks(layout, rebuilt[layout.lane.partition])
        there = counts.pop(layout.lane.partition, 0)
        if known is not None and there > known:
            suspects.append(layout)
    found = strays(df, [(x.lane.partition, hole) for x in suspects for hole in x.holes()])
    finding = partial(VerifyFinding, Fault.UNEXPLAINED, record.name)
    detail = "they are in the lake, the watermark has passed them, and they were never sent"
    findings = [
        finding(s.partition, s.rows, f"{plural(s.count, 'row')}, sequence numbers {s.first} to {s.last}", detail)
        for s in found[:STRAYS_MAX]
    ]
    if more := sum(s.count for s in found[STRAYS_MAX:]):
        findings.append(finding("", None, f"{plural(more, 'row')} more", "they were never sent either"))
    for partition, rows in sorted((p, n) for p, n in counts.items() if p not in left_out):
        what = f"{plural(rows, 'row')} up to {record.planned}"
        detail = "they are in the lake, and the ledger does not know their partition"
        findings.append(finding(partition, None, what, detail))
    return findings


def _rows_in_chunks(layout: LaneRanges, rebuilt: Mapping[SeqRange, LakeRows]) -> int | None:
    """How many rows the lake has in the lane's ranges up to its watermark; None if not all ranges could be rebuilt."""
    ranges = [r.chunk.rows for r in layout.chunks if r.chunk.rows.hi <= layout.mark]
    ranges += [p.held.rows for p in layout.present if p.record is None and p.options is None]
    found = [rebuilt.get(r) for r in ranges]
    if any(f is None or f.twice is not None for f in found):
        return None
    return sum(f.all for f in found if f is not None)


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """The sequence numbers that a lane's watermark covers: above `floor`, up to `mark`."""

    partition: str
    floor: int
    mark: int


def rows_by_lane(df: DataFrame, spans: Sequence[LaneSpan], others: LaneSpan) -> dict[str, int]:
    """How many rows each lane has in its span; a lane without a span is counted over that of `others`."""
    number = F.col(SEQ_COLUMN)
    if PARTITION_COLUMN not in df.columns:
        only = spans[0] if spans else others
        rows = df.where((number > only.floor) & (number <= only.mark))
        return _counts(rows.agg(F.lit(NOT_PARTITIONED).alias("_lane"), F.count("*").alias("rows")))
    laned = df.select(lane_of(df).alias("_lane"), number)
    floor, mark = F.lit(others.floor), F.lit(others.mark)
    if spans:
        known = df.sparkSession.createDataFrame(
            [(s.partition, s.floor, s.mark) for s in spans], "_lane string, _floor long, _mark long"
        )
        laned = laned.join(F.broadcast(known), "_lane", "left")
        floor, mark = F.coalesce(F.col("_floor"), floor), F.coalesce(F.col("_mark"), mark)
    return _counts(laned.where((number > floor) & (number <= mark)).groupBy("_lane").agg(F.count("*").alias("rows")))


def _counts(df: DataFrame) -> dict[str, int]:
    with explaining(_CANNOT_COUNT):
        return {r["_lane"]: r["rows"] for r in df.collect() if r["rows"]}  # one row per lane


@dataclass(frozen=True, slots=True)
class Stray:
    """Rows in a part of a lane where the ledger says that there are none."""

    partition: str
    rows: SeqRange
    count: int
    first: int
    last: int


def strays(df: DataFrame, holes: Sequence[tuple[str, SeqRange]]) -> list[Stray]:
    if not holes:
        return []
    known = df.sparkSession.createDataFrame(
        [(p, int(r.lo), int(r.hi)) for p, r in holes], "_lane string, _from long, _to long"
    )
    number = F.col(SEQ_COLUMN)
    laned = df.select(lane_of(df).alias("_lane"), number).join(F.broadcast(known), "_lane")
    inside = laned.where(number.between(F.col("_from"), F.col("_to")))
    grouped = inside.groupBy("_lane", "_from").agg(
        F.count("*").alias("rows"), F.min(number).alias("first"), F.max(number).alias("last")
    )
    by_start = {(p, int(r.lo)): r for p, r in holes}
    with explaining(_CANNOT_COUNT):
        found = grouped.collect()  # one row per hole that has rows
    return sorted(
        (Stray(r["_lane"], by_start[r["_lane"], r["_from"]], r["rows"], r["first"], r["last"]) for r in found),
        key=lambda s: (s.partition, s.rows),
    )
