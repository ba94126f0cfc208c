"""The proof of a delivery: compares the contents of a lane's ranges at the sink, in the ledger and in the lake. Pure.

A range at the sink must have what the ledger recorded, and the lake must have it, too, unless it has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.core.delivery_types import ChunkState
from strandline.core.text.wording import plural
from strandline.core.types import SeqRange
from strandline.deliver.send.digests import bare, prove_different, same_bytes
from strandline.deliver.sink import Inspected
from strandline.deliver.verify.ranges import Fault, LaneRanges, Present, Recorded, VerifyFinding
from strandline.deliver.verify.verdict import Proved

_ENCODED_OTHERWISE = (
    "it has the right number of rows; another version of the encoder wrote its bytes, so these cannot be compared"
)


@dataclass(frozen=True, slots=True)
class LakeRows:
    """What a range would be if it were delivered now."""

    count: int
    withheld: int
    digest: str | None  # None if there is nothing to send, or it is not known
    twice: int | None = None  # a sequence number that is on two rows

    @property
    def all(self) -> int:
        return self.count + self.withheld


@dataclass
class LaneProof(Proved):
    """What was proved of a lane, and what was found."""

    findings: list[VerifyFinding]


@dataclass(frozen=True, slots=True)
class LakeSide:
    """What each range of a lane would be if it were delivered now."""

    ranges: Mapping[SeqRange, LakeRows]  # without the ranges that could not be rebuilt, which are findings already
    changed: bool  # rows were deleted or changed since they came in, or the history that would tell is gone
    reshaped: bool = False  # the schema was changed, so the same rows may make other bytes
    floor: int = 0  # rows at or below it may be gone, by retention
    purged: tuple[SeqRange, ...] = ()  # in these ranges a person purged rows

    def may_lack(self, rows: SeqRange) -> bool:
        return rows.lo <= self.floor or any(rows.overlaps(p) for p in self.purged)


def prove(layout: LaneRanges, inspected: Mapping[SeqRange, Inspected], lake: LakeSide) -> LaneProof:
    """Compares one lane. A range that is not in `inspected` could not be read, which is a finding already."""
    proof = LaneProof(list(layout.findings), taken=len(layout.taken), under_way=layout.under_way)
    layout.findings = proof.findings  # `layout.add` below adds to the proof
    comparison = _Comparison(layout, proof, lake)
    by_chunk = {p.record.chunk.id: p for p in layout.present if p.record is not None}
    for present in layout.present:
        comparison.check_content(present, inspected.get(present.held.rows))
    for record in layout.chunks:
        chunk = record.chunk
        proof.withheld += chunk.withheld or 0
        if chunk.state is ChunkState.EMPTY:
            proof.empty += not any(n in chunk.rows for n in layout.set_aside)
            comparison.check_empty(record)
        else:
            there = by_chunk.get(chunk.id)
            seen = None if there is None else inspected.get(chunk.rows)
            proof.rows += comparison.check_with_lake(record, there, seen)
    for present in layout.beyond:
        layout.add(Fault.EXTRA, present.held.rows, "it is above everything that was promised to the sink")
    return proof


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares range by range, and adds what it finds to the proof."""

    layout: LaneRanges
    proof: LaneProof
    lake: LakeSide

    def check_content(self, present: Present, seen: Inspected | None) -> None:
        """Compares the sink with the ledger; with the lake if the ledger has no record of the range."""
        rows, options = present.held.rows, present.options
        self.proof.ranges += 1
        known = None if present.record is None else present.record.chunk.size
        self.proof.checked_bytes += known or present.held.size or 0
        if seen is None:
            return
        if seen.problem is not None:
            self.layout.add(Fault.CORRUPT, rows, seen.problem, options=options)
        elif present.record is not None:
            chunk = present.record.chunk
            count, digest = _seen(present, seen)
            if chunk.count is not None and count is not None and count != chunk.count:
                words = f"it holds {plural(count, 'row')}, and {chunk.count:,} were delivered"
                self.layout.add(Fault.COUNT, rows, words, options=options)
            elif chunk.digest and digest and not same_bytes(digest, chunk.digest):
                words = f"its content is {bare(digest)}, and {bare(chunk.digest)} was delivered"
                self.layout.add(Fault.DIGEST, rows, words, options=options)
        else:
            self._check_taken_over(present, seen)

    def _check_taken_over(self, present: Present, seen: Inspected) -> None:
        rows, options, lake = present.held.rows, present.options, self.lake
        taken_over = options is None
        self.proof.taken_over += taken_over
        there = lake.ranges.get(rows)
        if there is None:
            return
        count, digest = _seen(present, seen)
        differs = bool(digest and there.digest and prove_different(digest, there.digest))
        same = count in (None, there.count) and not differs
        if taken_over:
            self.proof.rows += count or 0
        if same and there.count > 0:
            if digest and there.digest and not same_bytes(digest, there.digest):
                self.layout.add(Fault.NOTE, rows, _ENCODED_OTHERWISE, options=options)
            return
        why = "the ledger has no record of it" if taken_over else "its range differs from the chunk in the ledger"
        fewer = there.count <= (count or 0)
        if lake.may_lack(rows) and fewer:
            self.proof.unprovable += 1
            words = f"{why}, and rows of it were deleted from the lake since"
            self.layout.add(Fault.UNPROVABLE, rows, words, options=options)
            return
        words = "none of its rows" if there.count == 0 else "other rows"
        kind = Fault.NOTE if lake.changed and fewer else Fault.EXTRA
        words = f"{why}, and the lake has {words}" + (" by now" if lake.changed else "")
        self.layout.add(kind, rows, words, options=options)

    def check_empty(self, record: Recorded) -> None:
        chunk, there = record.chunk, self.lake.ranges.get(record.chunk.rows)
        if there is None:
            return
        withheld = chunk.withheld or 0
        explained = withheld + sum(1 for n in self.layout.set_aside if n in chunk.rows)
        if there.twice is not None:
            self._twice(record, there.twice)
        elif there.all > explained:
            words = f"the lake has {plural(there.all - explained, 'row')} there that nobody sent"
            self.layout.add(Fault.UNEXPLAINED, chunk.rows, words, options=record.options)
        elif explained > withheld:
            return  # whether the lake still has the row does not matter
        elif there.all < withheld and self.lake.may_lack(chunk.rows):
            self.proof.gone += withheld - there.all
        elif (there.count, there.withheld) != (0, withheld):
            there_now = f"it has {there.withheld:,} to withhold and {there.count:,} to send"
            self._differs(record, Fault.COUNT, f"{plural(withheld, 'row')} were withheld, {there_now}")

    def check_with_lake(self, record: Recorded, present: Present | None, seen: Inspected | None) -> int:
        """Compares the ledger, or the sink if there is no record, with the lake. Returns the rows of the chunk."""
        chunk, there, options = record.chunk, self.lake.ranges.get(record.chunk.rows), record.options
        seen_count = None if seen is None or seen.problem else seen.count
        count = chunk.count if chunk.count is not None else seen_count
        if there is None:
            return count or 0
        if there.twice is not None:
            self._twice(record, there.twice)
            return count or 0
        digest = chunk.digest or None
        if digest is None and present is not None and seen is not None and not seen.problem:
            digest = seen.digest or present.held.digest
        known = None if count is None else count + (chunk.withheld or 0)
        may_lack = self.lake.may_lack(chunk.rows)
        if (chunk.found or chunk.count is None) and may_lack and (known is None or there.all < known):
            self.proof.unprovable += 1
            words = "a ledger that is lost delivered it, and rows of it were deleted from the lake since"
            self.layout.add(Fault.UNPROVABLE, chunk.rows, words, options=options)
            return count or 0
        delivered = there.count if count is None else count
        whole = delivered + (there.withheld if chunk.withheld is None else chunk.withheld)
        if there.all > whole:
            more = plural(there.all - whole, "row")
            words = f"the lake has {more} more in this range than were delivered or withheld"
            self.layout.add(Fault.COUNT, chunk.rows, words, options=options)
        elif there.all < whole and may_lack:
            self.proof.gone += whole - there.all  # the sink was compared with what the ledger recorded when it was sent
        elif there.all < whole:
            fewer = plural(whole - there.all, "row")
            self._differs(record, Fault.COUNT, f"it has {fewer} fewer than were delivered")
        elif there.count != delivered:
            words = f"the condition lets {plural(there.count, 'row')} through, and {delivered:,} were delivered"
            self._differs(record, Fault.COUNT, words)
        elif digest and there.digest and prove_different(digest, there.digest):
            self._differs(record, Fault.DIGEST, "its rows have another content now")
        elif digest and there.digest and not same_bytes(digest, there.digest):
            self.layout.add(Fault.NOTE, chunk.rows, _ENCODED_OTHERWISE, options=options)
        return delivered

    def _differs(self, record: Recorded, kind: Fault, words: str) -> None:
        if self.lake.changed or (self.lake.reshaped and kind is Fault.DIGEST):
            kind, words = Fault.NOTE, f"the lake has changed since: {words}"
        else:
            words = f"the lake is not as it was: {words}, and nothing in its history says why"
        self.layout.add(kind, record.chunk.rows, words, options=record.options)

    def _twice(self, record: Recorded, number: int) -> None:
        words = f"sequence number {number} is on two rows of the lake: someone copied rows together with their numbers"
        self.layout.add(Fault.COUNT, record.chunk.rows, words, options=record.options)


def _seen(present: Present, seen: Inspected) -> tuple[int | None, str | None]:
    """Count and digest of a range: as it was read, or else as the sink's record says."""
    return present.held.count if seen.count is None else seen.count, seen.digest or present.held.digest
