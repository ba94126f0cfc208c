"""Finds the sinks that were sent purged rows, may have been sent them, or will not get them. Executors count the
rows."""

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
    maybe_sent: int
    why: tuple[str, ...]  # why it may have more such rows; empty if it has none, as far as we know
    owed: tuple[NewLoss, ...]

    @property
    def lost(self) -> int:
        return sum(x.rows or 0 for x in self.owed)


def list_may_hold(findings: Sequence[SinkExposure], late: Sequence[SinkGeneration]) -> Iterator[MayHold]:
    """The sinks that may have matching rows. `late`: those that may have got some while rows were deleted."""
    late_by_id = {h.record.id: h for h in late}
    for f in findings:
        is_late = f.holder.is_current and late_by_id.pop(f.holder.record.id, None) is not None
        why: Sequence[str] = (*f.why, MEANWHILE) if is_late else f.why
        if why:
            yield may_hold(f.holder, f.maybe_sent or None, why)
    for holder in late_by_id.values():
        yield may_hold(holder, None, (MEANWHILE,))


@dataclass(frozen=True)
class SinkSearch:
    context: MaintainContext
    dataset: Dataset
    where: str
    progress: MaintainProgress

    def find_exposed(
        self, sealed: Seq | None, floor: Seq | None, matching: int, quarantined: Sequence[RefusedRow]
    ) -> list[SinkExposure]:
        """One finding per generation of every sink that the dataset has or had. `matching`: how many rows match."""
        with self.context.ledger.read() as connection:
            holders = sink_exposure.of_dataset(connection, self.dataset.id)
            by_sink = {h.record.id: skipped_rows.lane_positions(connection, h.record) for h in holders if h.is_current}
        if sealed is None or not matching:
            return [_with_floor(SinkExposure(h, 0, 0, (), ()), floor) for h in holders]
        table = RowSearch(self.context, self.dataset, self.where).settled(sealed).df.where(F.expr(self.where))
        fits = table.persist(StorageLevel.MEMORY_ONLY)  # few rows, read many times
        try:
            findings = []
            for n, holder in enumerate(holders):
                self.progress("searching for sinks that have them", n, len(holders))
                positions = by_sink[holder.record.id] if holder.is_current else []
                finding = self._finding(fits, holder, positions, sealed, matching)
                findings.append(_with_floor(_without_refused(finding, quarantined), floor))
            return findings
        finally:
            fits.unpersist()

    def _finding(
        self, fits: DataFrame, holder: SinkGeneration, positions: Sequence[LanePosition], sealed: Seq, matching: int
    ) -> SinkExposure:
        begun = {s.partition: s.intent for s in positions if s.intent is not None}
        ranges = sent_ranges(holder, sealed, begun)
        sent = self._count(fits, ranges.sent, ranges)
        maybe_sent = self._count(fits, ranges.maybe_sent, ranges)
        if CONDITION_UNFIT in ranges.why:
            sent, maybe_sent = 0, sent + maybe_sent
        lacking = self._owed(fits, holder.record, positions, sealed) if holder.is_current else ()
        why = tuple(ranges.why) if maybe_sent else ()
        return SinkExposure(holder, sent, min(maybe_sent, matching), why, lacking)

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
    """Subtracts quarantined rows: the watermark is above them, but the sink does not have them."""
    marks = {past.partition: int(past.mark or 0) for past in finding.holder.lanes}
    holder = (finding.holder.record.id, finding.holder.generation)
    own = [r for r in quarantined if (r.sink.id, r.generation) == holder]
    passed = sum(r.number <= marks.get(r.partition, 0) for r in own)
    again = sum(r.may_have_landed for r in own)
    why = (*finding.why, SENT_AGAIN) if again else finding.why
    return replace(finding, sent=max(0, finding.sent - passed), maybe_sent=finding.maybe_sent + again, why=why)


def _with_floor(finding: SinkExposure, floor: Seq | None) -> SinkExposure:
    """Adds that the sink may have rows that retention deleted, if it began below the floor."""
    return replace(finding, why=(*finding.why, RETAINED)) if began_below(finding.holder, floor) else finding
