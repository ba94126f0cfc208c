"""Finds sinks that were sent purged rows, may have been, or will not get them any more. Executors count the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core.calling_off import check_not_called_off
from strandline.core.delivery_types import RefusedRow, SinkRecord
from strandline.core.errors import StrandlineError
from strandline.core.types import Dataset, Seq, SeqRange
from strandline.iceberg.spark.conditions import find_instability
from strandline.ledger.deliver import sink_exposure
from strandline.ledger.deliver.losses import NewLoss
from strandline.ledger.deliver.sink_exposure import SinkGeneration
from strandline.ledger.maintain import skipped_rows
from strandline.ledger.maintain.skipped_rows import LanePosition
from strandline.maintain import count_rows
from strandline.maintain.context import MaintainContext, MaintainProgress
from strandline.maintain.purge.plan import (
    CONDITION_UNFIT,
    MEANWHILE,
    RETAINED,
    SENT_AGAIN,
    MayHold,
    SentRanges,
    began_below,
    may_hold,
    sent_ranges,
)
from strandline.maintain.purge.table_rows import RowSearch


@dataclass(frozen=True, slots=True)
class SinkExposure:
    holder: SinkGeneration
    sent: int
    may: int
    why: tuple[str, ...]  # why it may have more such rows; empty if it has none, as far as we know
    owed: tuple[NewLoss, ...]

    @property
    def lost(self) -> int:
        return sum(x.rows or 0 for x in self.owed)


def list_may_hold(findings: Sequence[SinkExposure], came_meanwhile: Sequence[SinkGeneration]) -> Iterator[MayHold]:
    """`came_meanwhile`: sinks that somebody delivered to while rows were deleted."""
    meanwhile = {h.record.id: h for h in came_meanwhile}
    for f in findings:
        late = meanwhile.pop(f.holder.record.id, None) if f.holder.is_current else None
        why: Sequence[str] = f.why if late is None else (*f.why, MEANWHILE)
        if why:
            yield may_hold(f.holder, f.may or None, why)
    for holder in meanwhile.values():
        yield may_hold(holder, None, (MEANWHILE,))


@dataclass(frozen=True)
class SinkSearch:
    context: MaintainContext
    dataset: Dataset
    where: str
    progress: MaintainProgress

    def find_exposed(
        self, sealed: Seq | None, floor: Seq | None, found: int, quarantined: Sequence[RefusedRow]
    ) -> list[SinkExposure]:
        """One finding per generation of every sink that the dataset has or had."""
        with self.context.ledger.read() as connection:
            known = sink_exposure.of_dataset(connection, self.dataset.id)
            by_sink = {h.record.id: skipped_rows.lane_positions(connection, h.record) for h in known if h.is_current}
        if sealed is None or not found:
            return [_with_floor(SinkExposure(h, 0, 0, (), ()), floor) for h in known]
        table = RowSearch(self.context, self.dataset, self.where).settled(sealed).df.where(F.expr(self.where))
        fits = table.persist(StorageLevel.MEMORY_ONLY)  # few rows, read many times
        try:
            findings = []
            for n, holder in enumerate(known):
                self.progress("searching for sinks that have them", n, len(known))
                positions = by_sink[holder.record.id] if holder.is_current else []
                finding = self._finding(fits, holder, positions, sealed, found)
                findings.append(_with_floor(_without_refused(finding, quarantined), floor))
            return findings
        finally:
            fits.unpersist()

    def _finding(
        self, fits: DataFrame, holder: SinkGeneration, positions: Sequence[LanePosition], sealed: Seq, found: int
    ) -> SinkExposure:
        begun = {s.partition: s.intent for s in positions if s.intent is not None}
        ranges = sent_ranges(holder, sealed, begun)
        sent = self._count(fits, ranges.sent, ranges)
        may = self._count(fits, ranges.may, ranges)
        if CONDITION_UNFIT in ranges.why:
            sent, may = 0, sent + may
        lacking = self._owed(fits, holder.record, positions, sealed) if holder.is_current else ()
        why = tuple(ranges.why) if may else ()
        return SinkExposure(holder, sent, min(may, found), why, lacking)

    def _count(self, fits: DataFrame, by: Mapping[str | None, Mapping[str, list[SeqRange]]], ranges: SentRanges) -> int:
        total = 0
        for where, lanes in by.items():
            if (counted := self._chosen(fits, lanes, where)) is None:
                ranges.because(CONDITION_UNFIT)
                counted = count_rows.count_owed(fits, lanes, None, None, "true")
            total += sum(c.rows for c in counted.values())
        return total

    def _chosen(
        self, fits: DataFrame, lanes: Mapping[str, list[SeqRange]], where: str | None
    ) -> dict[str, count_rows.RowCounts] | None:
        """None if the sink's own condition cannot be evaluated, or fails on some row."""
        if where is not None and not _fits(fits, where):
            return None
        try:
            return count_rows.count_owed(fits, lanes, None, where, "true")
        except StrandlineError:
            check_not_called_off()  # a cancelled job says nothing about the condition
            if where is None:
                raise
            return None

    def _owed(
        self, fits: DataFrame, record: SinkRecord, positions: Sequence[LanePosition], sealed: Seq
    ) -> tuple[NewLoss, ...]:
        lacking = count_rows.count_lacking(fits, record, positions, sealed, "true")
        marks = {s.partition: s.mark for s in positions}
        return tuple(
            NewLoss(lane, marks.get(lane, record.planned), c.last, c.rows)
            for lane, c in lacking.items()
            if c.rows and c.last is not None
        )


def _fits(df: DataFrame, where: str) -> bool:
    """Whether the condition gives the same result now as when the sink's rows were chosen."""
    try:
        return find_instability(df, where) is None
    except PySparkException:
        return False


def _without_refused(finding: SinkExposure, quarantined: Sequence[RefusedRow]) -> SinkExposure:
    """The watermark is above quarantined rows, but the sink does not have them."""
    marks = {past.partition: int(past.mark or 0) for past in finding.holder.lanes}
    holder = (finding.holder.record.id, finding.holder.generation)
    own = [r for r in quarantined if (r.sink.id, r.generation) == holder]
    passed = sum(r.number <= marks.get(r.partition, 0) for r in own)
    again = sum(r.may_have_landed for r in own)
    why = (*finding.why, SENT_AGAIN) if again else finding.why
    return replace(finding, sent=max(0, finding.sent - passed), may=finding.may + again, why=why)


def _with_floor(finding: SinkExposure, floor: Seq | None) -> SinkExposure:
    return replace(finding, why=(*finding.why, RETAINED)) if began_below(finding.holder, floor) else finding
