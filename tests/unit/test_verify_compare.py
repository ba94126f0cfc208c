"""The proof of a delivery over values: every way in which the three sides can disagree is found and named."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.delivery_types import Chunk, ChunkId, ChunkState, Intent, IntentId, Lane, LaneId, SinkId
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.deliver.sink import Held, HeldRange, Inspected
from strandline.deliver.verify.compare import LakeRows, LakeSide, LaneProof, prove
from strandline.deliver.verify.ranges import Fault, LaneRanges, OptionsKey, lay_out, without

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDS = itertools.count(1)


def rows(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def landed(lo: int, hi: int, count: int | None = None, withheld: int = 0) -> Chunk:
    count = hi - lo + 1 - withheld if count is None else count
    return Chunk(
        ChunkId(next(IDS)),
        rows(lo, hi),
        ChunkState.LANDED,
        count + withheld,
        count,
        withheld,
        f"sha256:{lo}",
        10,
        False,
    )


def empty(lo: int, hi: int, withheld: int = 0) -> Chunk:
    return Chunk(ChunkId(next(IDS)), rows(lo, hi), ChunkState.EMPTY, withheld, 0, withheld, None, None, False)


def planned(lo: int, hi: int) -> Chunk:
    return Chunk(ChunkId(next(IDS)), rows(lo, hi), ChunkState.PLANNED, hi - lo + 1, None, None, None, None, False)


def intent(after: int | None, until: int, *chunks: Chunk, is_open: bool = False) -> Intent:
    number = next(IDS)
    return Intent(
        IntentId(number), LaneId(1), "", None if after is None else Seq(after), Seq(until), {"path": "out"}, NOW,
        None if is_open else NOW, chunks,
    )  # fmt: skip


def lane(mark: int | None) -> Lane:
    seq = None if mark is None else Seq(mark)
    return Lane(LaneId(1), SinkId(1), 1, "", "", seq, 0, 0, None, 1, NOW)


def held(*ranges: SeqRange, mark: int | None = None) -> Held:
    return Held(None if mark is None else Seq(mark), tuple(HeldRange(r) for r in ranges))


def name(of: SeqRange, options: OptionsKey | None) -> str:
    return f"object {of.lo}-{of.hi}"


def laid_out(
    mark: int | None, intents: Sequence[Intent], sink: Held, *, start: int | None = None, taken_is_fine: bool = False
) -> LaneRanges:
    begin = None if start is None else Seq(start)
    return lay_out("s", lane(mark), begin, intents, sink, name, taken_is_fine=taken_is_fine)


def seen_as_recorded(layout: LaneRanges) -> dict[SeqRange, Inspected]:
    return {
        p.held.rows: Inspected(p.record.chunk.count, p.record.chunk.digest)
        for p in layout.present
        if p.record is not None
    }


def lake_as_recorded(layout: LaneRanges) -> dict[SeqRange, LakeRows]:
    return {r.chunk.rows: LakeRows(r.chunk.count or 0, r.chunk.withheld or 0, r.chunk.digest) for r in layout.chunks}


def proved(
    layout: LaneRanges,
    *,
    seen: dict[SeqRange, Inspected] | None = None,
    lake: dict[SeqRange, LakeRows] | None = None,
    changed: bool = False,
    reshaped: bool = False,
) -> LaneProof:
    side = LakeSide(lake_as_recorded(layout) | (lake or {}), changed, reshaped)
    return prove(layout, seen_as_recorded(layout) | (seen or {}), side)


def found(proof: LaneProof) -> list[tuple[Fault, str]]:
    return [(f.kind, f.what) for f in proof.findings]


TWO = [intent(None, 50, landed(1, 20), landed(21, 50)), intent(50, 90, landed(51, 90))]
ALL = (rows(1, 20), rows(21, 50), rows(51, 90))


def test_chunks_that_tile_the_range_and_lie_at_the_sink_are_proved() -> None:
    proof = proved(laid_out(90, TWO, held(*ALL, mark=90)))
    assert (proof.findings, proof.ranges, proof.rows, proof.checked_bytes) == ([], 3, 90, 30)


def test_a_sink_without_anything_delivered_is_proved() -> None:
    proof = proved(laid_out(None, [], held()))
    assert (proof.findings, proof.ranges) == ([], 0)


# What is there and what is not.


def test_an_object_that_is_gone_is_named() -> None:
    proof = proved(laid_out(90, TWO, held(ALL[0], ALL[2])))
    assert found(proof) == [(Fault.MISSING, "object 21-50")]
    assert "30 rows" in proof.findings[0].detail


def test_an_object_below_the_sinks_mark_is_missing_unless_consumers_may_take_it() -> None:
    sink = held(ALL[2], mark=50)
    strict = proved(laid_out(90, TWO, sink))
    assert found(strict) == [(Fault.MISSING, "object 1-20"), (Fault.MISSING, "object 21-50")]
    assert "--taken-is-fine" in strict.findings[0].detail
    lenient = proved(laid_out(90, TWO, sink, taken_is_fine=True))
    assert (lenient.findings, lenient.taken, lenient.rows) == ([], 2, 90)


def test_an_object_beyond_the_sinks_mark_is_missing_even_if_consumers_may_take() -> None:
    proof = proved(laid_out(90, TWO, held(ALL[0], ALL[1], mark=50), taken_is_fine=True))
    assert found(proof) == [(Fault.MISSING, "object 51-90")]


def test_two_objects_with_the_same_rows_are_named() -> None:
    proof = proved(laid_out(90, TWO, held(*ALL, rows(40, 60))))
    assert (Fault.OVERLAP, "object 40-60") in found(proof)
    assert any("object 21-50" in f.detail for f in proof.findings)


def test_an_object_where_nothing_was_to_be_sent_is_too_much() -> None:
    intents = [intent(None, 50, landed(1, 20), empty(21, 50))]
    assert found(proved(laid_out(50, intents, held(rows(1, 20), rows(21, 50))))) == [(Fault.EXTRA, "object 21-50")]
    assert found(proved(laid_out(50, intents, held(rows(1, 20), rows(25, 30))))) == [(Fault.EXTRA, "object 25-30")]


def test_an_object_beyond_everything_that_was_promised_is_too_much() -> None:
    assert found(proved(laid_out(90, TWO, held(*ALL, rows(91, 95))))) == [(Fault.EXTRA, "object 91-95")]


def test_an_open_intent_is_under_way_and_no_fault() -> None:
    intents = [*TWO, intent(90, 120, landed(91, 100), planned(101, 110), planned(111, 120), is_open=True)]
    proof = proved(laid_out(90, intents, held(*ALL, rows(91, 100), rows(101, 110))))
    assert (proof.findings, proof.under_way) == ([], 2)


def test_an_object_in_the_way_of_a_promised_one_is_told() -> None:
    intents = [*TWO, intent(90, 120, planned(91, 120), is_open=True)]
    assert found(proved(laid_out(90, intents, held(*ALL, rows(91, 110))))) == [(Fault.OVERLAP, "object 91-110")]


# Holes.


def test_what_lies_below_the_start_is_skipped() -> None:
    layout = laid_out(90, [intent(40, 90, landed(41, 90))], held(rows(41, 90)), start=40)
    assert (proved(layout).findings, layout.floor, layout.holes()) == ([], 40, [])


def test_a_lane_that_was_sent_again_from_below_its_start_answers_for_that_too() -> None:
    layout = laid_out(90, [intent(10, 90, landed(11, 90))], held(rows(11, 90)), start=60)
    assert (layout.floor, layout.holes()) == (10, [])


def test_marks_that_moved_without_an_intent_leave_holes_that_the_lake_must_explain() -> None:
    intents = [intent(30, 50, landed(31, 50)), intent(70, 90, landed(71, 90))]
    layout = laid_out(100, intents, held(rows(31, 50), rows(71, 90)))
    assert proved(layout).findings == []
    assert layout.holes() == [rows(1, 30), rows(51, 70), rows(91, 100)]


def test_chunks_that_do_not_tile_their_intent_are_a_gap() -> None:
    broken = [intent(None, 50, landed(1, 20), landed(31, 45))]
    proof = proved(laid_out(50, broken, held(rows(1, 20), rows(31, 45))))
    assert found(proof) == [(Fault.GAP, "object 21-30"), (Fault.GAP, "object 46-50")]


def test_chunks_and_intents_that_overlap_are_told() -> None:
    chunks = [intent(None, 50, landed(1, 30), landed(21, 50))]
    assert (Fault.OVERLAP, "object 21-30") in found(proved(laid_out(50, chunks, held(rows(1, 30)))))
    intents = [intent(None, 50, landed(1, 50)), intent(40, 90, landed(41, 90))]
    assert (Fault.OVERLAP, "object 41-50") in found(proved(laid_out(90, intents, held(rows(1, 50)))))


def test_a_promise_that_the_mark_passed_is_a_gap() -> None:
    proof = proved(laid_out(50, [intent(None, 50, landed(1, 20), planned(21, 50))], held(rows(1, 20))))
    assert found(proof) == [(Fault.GAP, "object 21-50")]


def test_a_mark_below_what_was_delivered_is_told() -> None:
    assert found(proved(laid_out(50, TWO, held(*ALL)))) == [(Fault.UNEXPLAINED, "object 51-90")]


# Contents.


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (Inspected(None, "sha256:x", "it cannot be read as Parquet"), Fault.CORRUPT),
        (Inspected(29, "sha256:21"), Fault.COUNT),
        (Inspected(30, "sha256:x"), Fault.DIGEST),
    ],
)
@pytest.mark.parametrize("changed", [False, True])
def test_an_object_that_is_not_what_was_delivered_is_named(seen: Inspected, kind: Fault, changed: bool) -> None:
    proof = proved(laid_out(90, TWO, held(*ALL)), seen={rows(21, 50): seen}, changed=changed)
    assert found(proof) == [(kind, "object 21-50")]


def test_a_digest_that_the_sinks_own_record_keeps_is_compared_too() -> None:
    sink = Held(None, tuple(HeldRange(r, len(r), "sha256:other", 1) for r in ALL[:1]))
    intents = [intent(None, 20, landed(1, 20))]
    proof = proved(laid_out(20, intents, sink), seen={ALL[0]: Inspected(20, None)})
    assert found(proof) == [(Fault.DIGEST, "object 1-20")]


@pytest.mark.parametrize(
    ("lake", "kind"),
    [
        (LakeRows(27, 0, "sha256:x"), Fault.COUNT),
        (LakeRows(30, 0, "sha256:x"), Fault.DIGEST),
        (LakeRows(28, 2, "sha256:x"), Fault.COUNT),
    ],
)
def test_a_lake_that_differs_is_a_fault_unless_it_has_changed_since(lake: LakeRows, kind: Fault) -> None:
    layout = laid_out(90, TWO, held(*ALL))
    assert found(proved(layout, lake={rows(21, 50): lake})) == [(kind, "object 21-50")]
    since = proved(laid_out(90, TWO, held(*ALL)), lake={rows(21, 50): lake}, changed=True)
    assert found(since) == [(Fault.NOTE, "object 21-50")]
    assert "changed since" in since.findings[0].detail


def test_rows_deleted_in_the_lake_are_counted_in_the_note() -> None:
    layout = laid_out(90, TWO, held(*ALL))
    proof = proved(layout, lake={rows(21, 50): LakeRows(27, 0, "sha256:x")}, changed=True)
    assert "3 rows fewer" in proof.findings[0].detail
    assert not proof.findings[0].is_fault


@pytest.mark.parametrize("changed", [False, True])
def test_rows_of_the_lake_that_were_not_delivered_are_a_fault_whatever_happened_since(changed: bool) -> None:
    layout = laid_out(90, TWO, held(*ALL))
    proof = proved(layout, lake={rows(21, 50): LakeRows(31, 0, "sha256:x")}, changed=changed)
    assert found(proof) == [(Fault.COUNT, "object 21-50")]
    assert "1 row more" in proof.findings[0].detail


def test_another_schema_explains_other_bytes_and_not_fewer_rows() -> None:
    other = {rows(21, 50): LakeRows(30, 0, "sha256:x")}
    assert found(proved(laid_out(90, TWO, held(*ALL)), lake=other, reshaped=True)) == [(Fault.NOTE, "object 21-50")]
    fewer = {rows(21, 50): LakeRows(29, 0, "sha256:x")}
    assert found(proved(laid_out(90, TWO, held(*ALL)), lake=fewer, reshaped=True)) == [(Fault.COUNT, "object 21-50")]


def test_a_number_on_two_rows_of_the_lake_is_named() -> None:
    proof = proved(laid_out(90, TWO, held(*ALL)), lake={rows(21, 50): LakeRows(0, 0, None, twice=33)})
    assert found(proof) == [(Fault.COUNT, "object 21-50")]
    assert "number 33" in proof.findings[0].detail


def test_withheld_rows_are_counted_and_explain_their_range() -> None:
    intents = [intent(None, 50, landed(1, 20, withheld=5), empty(21, 50, withheld=30))]
    proof = proved(laid_out(50, intents, held(rows(1, 20))))
    assert (proof.findings, proof.rows, proof.withheld, proof.empty) == ([], 15, 35, 1)


@pytest.mark.parametrize("changed", [False, True])
def test_rows_in_a_range_that_was_recorded_as_empty_are_unexplained(changed: bool) -> None:
    layout = laid_out(50, [intent(None, 50, empty(1, 50))], held())
    proof = proved(layout, lake={rows(1, 50): LakeRows(2, 0, "sha256:x")}, changed=changed)
    assert found(proof) == [(Fault.UNEXPLAINED, "object 1-50")]


def test_fewer_rows_to_withhold_are_a_note_where_rows_were_deleted() -> None:
    layout = laid_out(50, [intent(None, 50, empty(1, 50, withheld=50))], held())
    assert found(proved(layout, lake={rows(1, 50): LakeRows(0, 48, None)}, changed=True)) == [
        (Fault.NOTE, "object 1-50")
    ]


# What a restored ledger learned from the sink.


def found_there(lo: int, hi: int) -> Chunk:
    return replace(landed(lo, hi), withheld=None, digest=None, size=None, found=True)


def test_a_range_of_unknown_content_is_compared_with_the_lake_directly() -> None:
    intents = [intent(None, 20, found_there(1, 20))]
    same = {rows(1, 20): LakeRows(20, 3, "sha256:a")}
    layout = laid_out(20, intents, held(rows(1, 20)))
    assert proved(layout, seen={rows(1, 20): Inspected(20, "sha256:a")}, lake=same).findings == []
    layout = laid_out(20, intents, held(rows(1, 20)))
    other = proved(layout, seen={rows(1, 20): Inspected(20, "sha256:b")}, lake=same)
    assert found(other) == [(Fault.DIGEST, "object 1-20")]


def test_what_was_taken_over_with_a_mark_is_compared_with_the_lake_directly() -> None:
    layout = laid_out(120, TWO, held(*ALL, rows(91, 120)))
    seen = {rows(91, 120): Inspected(30, "sha256:a")}
    proof = proved(layout, seen=seen, lake={rows(91, 120): LakeRows(30, 0, "sha256:a")})
    assert (proof.findings, proof.taken_over, proof.rows) == ([], 1, 120)


@pytest.mark.parametrize("there", [LakeRows(0, 0, None), LakeRows(30, 0, "sha256:b"), LakeRows(29, 0, "sha256:a")])
def test_what_nobody_delivered_and_the_lake_does_not_have_is_too_much(there: LakeRows) -> None:
    layout = laid_out(120, TWO, held(*ALL, rows(91, 120)))
    proof = proved(layout, seen={rows(91, 120): Inspected(30, "sha256:a")}, lake={rows(91, 120): there})
    assert found(proof) == [(Fault.EXTRA, "object 91-120")]


def test_a_chunk_that_the_sink_holds_in_another_cut_is_proved_by_its_parts() -> None:
    sink = held(rows(1, 25), rows(26, 50), rows(51, 90))
    layout = laid_out(90, [intent(None, 50, found_there(1, 20), found_there(21, 50)), TWO[1]], sink)
    seen = {rows(1, 25): Inspected(25, "sha256:p"), rows(26, 50): Inspected(25, "sha256:q")}
    lake = {rows(1, 25): LakeRows(25, 0, "sha256:p"), rows(26, 50): LakeRows(25, 0, "sha256:q")}
    assert proved(layout, seen=seen, lake=lake).findings == []
    worse = lake | {rows(26, 50): LakeRows(25, 0, "sha256:z")}
    layout = laid_out(90, [intent(None, 50, found_there(1, 20), found_there(21, 50)), TWO[1]], sink)
    assert found(proved(layout, seen=seen, lake=worse)) == [(Fault.EXTRA, "object 26-50")]


# Whatever the cut is.

CUTS = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def _cut(widths: Iterable[int]) -> list[SeqRange]:
    ends = list(itertools.accumulate(widths))
    return [rows(end - width + 1, end) for end, width in zip(ends, widths, strict=True)]


@given(widths=CUTS, data=st.data())
def test_taking_any_object_away_is_found_and_named_and_nothing_else(widths: list[int], data: st.DataObject) -> None:
    cut = _cut(widths)
    end = cut[-1].hi
    intents = [intent(None, end, *(landed(r.lo, r.hi) for r in cut))]
    assert proved(laid_out(end, intents, held(*cut))).findings == []
    away = data.draw(st.sampled_from(cut))
    proof = proved(laid_out(end, intents, held(*(r for r in cut if r != away))))
    assert found(proof) == [(Fault.MISSING, f"object {away.lo}-{away.hi}")]


@given(widths=CUTS, taken=st.sets(st.integers(0, 11)))
def test_a_range_without_others_is_what_is_left_of_it(widths: list[int], taken: set[int]) -> None:
    cut = _cut(widths)
    whole = rows(1, cut[-1].hi)
    out = [r for i, r in enumerate(cut) if i in taken]
    left = list(without(whole, merge_ranges(out)))
    assert {n for r in left for n in range(r.lo, r.hi + 1)} == set(range(1, whole.hi + 1)) - {
        n for r in out for n in range(r.lo, r.hi + 1)
    }
    assert left == merge_ranges(left)


def test_the_work_grows_with_the_chunks_and_not_with_their_square() -> None:
    chunks = tuple(landed(10 * n + 1, 10 * n + 10) for n in range(10_000))
    sink = held(*(c.rows for c in chunks))
    proof = proved(laid_out(100_000, [intent(None, 100_000, *chunks)], sink))
    assert (proof.findings, proof.ranges) == ([], 10_000)


# Bytes that nobody keeps.


def made(by: str, digest: str = "sha256:1") -> Chunk:
    return replace(landed(1, 20), digest=f"{digest};{by}")


@pytest.mark.parametrize(
    ("lakes", "expected"),
    [
        ("sha256:1;zstd-1", []),
        ("sha256:1;zstd-2", []),
        ("sha256:2;zstd-2", [Fault.NOTE]),
        ("sha256:2;zstd-1", [Fault.DIGEST]),
    ],
)
def test_bytes_of_another_encoder_are_noted_and_those_of_the_same_one_must_be_the_same(
    lakes: str, expected: list[Fault]
) -> None:
    """The sink says the digest of what it got, and not who made it."""
    layout = laid_out(20, [intent(None, 20, made("zstd-1"))], held(rows(1, 20)))
    seen = {rows(1, 20): Inspected(20, "sha256:1")}
    proof = proved(layout, seen=seen, lake={rows(1, 20): LakeRows(20, 0, lakes)})
    assert [f.kind for f in proof.findings] == expected


def test_a_range_that_was_taken_over_in_another_format_is_counted() -> None:
    layout = laid_out(20, [], Held(None, (HeldRange(rows(1, 20), 20, "sha256:1", 10),)))
    there = LakeRows(20, 0, "sha256:2;arrow-1")
    proof = proved(layout, seen={rows(1, 20): Inspected(20, "sha256:1")}, lake={rows(1, 20): there})
    assert [f.kind for f in proof.findings] == [Fault.NOTE] and proof.taken_over == 1
    again = laid_out(20, [], Held(None, (HeldRange(rows(1, 20), 20, "sha256:1", 10),)))
    seen = {rows(1, 20): Inspected(20, "sha256:1")}
    fewer = proved(again, seen=seen, lake={rows(1, 20): replace(there, count=19)})
    assert [f.kind for f in fewer.findings] == [Fault.EXTRA]
