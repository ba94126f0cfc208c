"""The decisions of a tick, over values."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.delivery_types import ChunkState, LanePlan
from strandline.core.errors import UsageError
from strandline.core.types import Seq, SeqRange
from strandline.deliver.plan.chunking import (
    FoundAtSink,
    RowPortion,
    batch_is_ready,
    cut,
    cut_around,
    lacking,
    promise_limit,
    ranges_to_pin,
    retry_wait_seconds,
    segments,
    with_pinned_cut,
)
from strandline.deliver.plan.size_scan_parquet import divide_file_rows
from strandline.deliver.send.core_limits import TroubledSinks, tasks_max
from strandline.deliver.sink import Cut, Held, HeldRange
from strandline.deliver.sink_options import COMMON, check_common, parse_common

NOW = datetime(2031, 4, 1, tzinfo=UTC)


def span(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


@st.composite
def laid_out(draw: st.DrawFn) -> list[RowPortion]:
    """Neighbouring pieces with gaps between them."""
    at, pieces = 1, []
    for _ in range(draw(st.integers(0, 12))):
        first = at + draw(st.integers(0, 5))
        rows = draw(st.integers(1, 20))
        last = first + rows - 1 + draw(st.integers(0, 3))
        pieces.append(RowPortion(first, last, rows, rows * draw(st.integers(1, 50))))
        at = last + 1
    return pieces


@given(laid_out(), st.integers(0, 30))
def test_chunks_tile_the_range_and_stay_within_their_limits(pieces: list[RowPortion], more: int) -> None:
    until = Seq((pieces[-1].last if pieces else 1) + more)
    options = parse_common({"chunk_rows_max": "25", "chunk_bytes_max": "600"})
    chunks = cut(None, until, pieces, options)
    assert bool(chunks) == bool(pieces)
    at = 0
    for chunk in chunks:
        assert chunk.rows.lo == at + 1
        at = chunk.rows.hi
        own = [p for p in pieces if p.first in chunk.rows]
        assert sum(p.rows for p in own) == chunk.expected
        assert len(own) == 1 or (chunk.expected <= 25 and sum(p.size for p in own) <= 600)
    assert not chunks or at == until


@given(st.data())
def test_what_a_sink_holds_is_never_cut_again(data: st.DataObject) -> None:
    edges = sorted(data.draw(st.sets(st.integers(1, 60), min_size=2, max_size=8)))
    ranges = [span(a, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=False) if a <= b - 1]
    mark = data.draw(st.one_of(st.none(), st.sampled_from([r.hi for r in ranges] or [Seq(1)])))
    after = data.draw(st.sampled_from([None, Seq(1)])) if not ranges or ranges[0].lo > 1 else None
    found = FoundAtSink(tuple(HeldRange(r, len(r), "d", 1) for r in ranges), mark)
    until = Seq(80)
    parts = segments(after, until, found)
    assert parts[0][0].lo == (after or 0) + 1 and parts[-1][0].hi == until
    assert all(a[0].hi + 1 == b[0].lo for a, b in pairwise(parts))
    pieces = {s: [RowPortion(s.lo, s.hi, len(s), len(s))] for s, _, _ in parts}
    chunks = cut_around(after, until, found, pieces, parse_common({"chunk_rows_max": "7"}))
    assert all(a.rows.hi + 1 == b.rows.lo for a, b in pairwise(chunks))
    sent = [c.rows for c in chunks if c.state is ChunkState.PLANNED]
    assert not any(s.overlaps(r) for s in sent for r in ranges)
    assert mark is None or all(s.lo > mark for s in sent)


def test_a_sink_with_marks_is_believed_by_its_mark_alone() -> None:
    """Chunks land in any order: the higher one may be in a backup that the lower one is not in."""
    acknowledged = [span(1, 5), span(6, 9)]
    restored = Held(None, (HeldRange(span(6, 9)),))
    assert lacking(acknowledged, restored, stores_watermarks=True) == acknowledged
    assert lacking(acknowledged, restored, stores_watermarks=False) == [span(1, 5)]
    assert lacking(acknowledged, Held(Seq(9), ()), stores_watermarks=True) == []


def test_a_chunk_ends_where_a_large_file_does() -> None:
    options = parse_common({"chunk_rows_max": "20"})
    pieces = [RowPortion(n, n + 4, 5, 5, ends_file=n == 21) for n in range(1, 51, 5)]
    assert [c.rows for c in cut(None, Seq(50), pieces, options)] == [
        span(1, 20),
        span(21, 25),
        span(26, 45),
        span(46, 50),
    ]


def planned(after: int | None, until: int, *ranges: SeqRange) -> LanePlan:
    pieces = [RowPortion(r.lo, r.hi, len(r), 1) for r in ranges]
    start = None if after is None else Seq(after)
    return LanePlan("", start, Seq(until), cut(start, Seq(until), pieces, parse_common({"chunk_rows_max": "1"})))


def test_a_cut_that_was_pinned_before_counts() -> None:
    plan = planned(None, 60, span(1, 30), span(31, 60))
    kept = with_pinned_cut(plan, Cut(Seq(50), (span(1, 50),)), None)
    assert kept is not None and [c.rows for c in kept.chunks] == [span(1, 50)] and kept.until == 50
    assert with_pinned_cut(plan, Cut(Seq(60), (span(1, 30), span(31, 60))), None) is plan


def test_a_pinned_cut_across_the_mark_is_a_conflict() -> None:
    plan = planned(10, 60, span(11, 60))
    assert with_pinned_cut(plan, Cut(Seq(50), (span(1, 50),)), None) is None
    assert ranges_to_pin(plan, Seq(10)) == (span(11, 60),)


def test_small_batches_wait_for_more_rows_but_not_for_ever() -> None:
    options = parse_common({"batch_rows_min": "100", "batch_wait_seconds_max": "30"})

    def ready(rows: int, age: float, *, behind: bool = False) -> bool:
        return batch_is_ready(options, rows=rows, oldest=NOW - timedelta(seconds=age), now=NOW, lanes_behind=behind)

    assert not ready(99, 29) and ready(100, 0) and ready(1, 30) and ready(0, 0, behind=True) and not ready(0, 99)


def test_a_wait_without_measure_that_an_earlier_release_stored_harms_nobody() -> None:
    options = parse_common({"batch_rows_min": "9" * 30, "batch_wait_seconds_max": "100000000000000"})
    assert not batch_is_ready(options, rows=1, oldest=NOW - timedelta(days=1), now=NOW, lanes_behind=False)


@pytest.mark.parametrize("name", [option.name for option in COMMON if (option.default or "").isdigit()])
def test_no_number_among_the_options_is_so_large_that_arithmetic_with_it_fails(name: str) -> None:
    for value in ("1000000000000001", "9" * 5000, "-1", "1.5", "²"):
        with pytest.raises(UsageError, match=f"option {name} is"):
            check_common({name: value})
    check_common({name: "1000"})


def test_waits_grow_are_bounded_and_honour_what_was_asked() -> None:
    waits = [retry_wait_seconds(n, None, 60, 1.0) for n in range(10)]
    assert waits == sorted(waits) and waits[0] <= 1 and waits[-1] == 60
    assert retry_wait_seconds(0, 20, 60, 0.0) == 20
    assert retry_wait_seconds(0, 300, 60, 0.0) == 300, "its own bound is not the one of the ladder"
    assert retry_wait_seconds(0, 90_000, 60, 0.0) == 3600
    assert retry_wait_seconds(3, -5, 60, 0.0) == 4


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 90)), min_size=1, max_size=80, unique_by=lambda x: x[0]))
def test_pieces_of_a_file_hold_every_row_once_and_a_heavy_row_alone(rows: list[tuple[int, int]]) -> None:
    import numpy as np

    numbers, sizes = (np.array(v, dtype=np.int64) for v in zip(*rows, strict=True))
    pieces = divide_file_rows(numbers, sizes, 50, 100)
    assert sum(p.rows for p in pieces) == len(rows) and sum(p.size for p in pieces) == sizes.sum()
    assert all(a.last < b.first for a, b in pairwise(pieces))
    assert all(p.rows <= 50 and (p.rows == 1 or p.size <= 100) for p in pieces)


def test_a_sink_that_fails_for_long_is_tried_less_and_less_often() -> None:
    def wait(hours: float, asked: float | None = None) -> float:
        seconds = 3600 * hours
        return retry_wait_seconds(99, asked, 60, 1.0, failing_seconds=seconds, long_seconds_max=3600)

    assert [wait(hours) for hours in (0, 0.1, 1, 5, 10, 1000)] == [60, 60, 360, 1800, 3600, 3600]
    assert retry_wait_seconds(3, None, 60, 1.0, failing_seconds=36_000, long_seconds_max=3600) == 8, "few tries so far"


# Cores.


@pytest.mark.parametrize(
    ("cores", "share", "others", "in_trouble", "tasks"),
    [
        (2, 0.5, True, False, 1),
        (2, 0.5, False, False, None),
        (2, 0.5, False, True, 1),
        (1, 0.5, True, False, 1),
        (16, 0.5, True, False, 8),
        (16, 0.25, True, False, 4),
        (16, 0.01, True, False, 1),
        (16, 1.0, True, False, 16),
        (16, 1.0, True, True, 1),
    ],
)
def test_a_sink_has_its_share_of_the_cores_and_one_in_trouble_has_one(
    cores: int, share: float, others: bool, in_trouble: bool, tasks: int | None
) -> None:
    assert tasks_max(cores=cores, share=share, others=others, in_trouble=in_trouble) == tasks


@pytest.mark.parametrize(("cores", "at_once"), [(1, 1), (2, 1), (4, 3)])
def test_sinks_in_trouble_leave_a_core_to_the_others(cores: int, at_once: int) -> None:
    class CalledOff(Exception):
        pass

    def call_off() -> None:
        raise CalledOff

    troubled = TroubledSinks()
    with ExitStack() as hanging:
        for _ in range(at_once):
            hanging.enter_context(troubled.sending(cores))
        with pytest.raises(CalledOff), troubled.sending(cores, call_off):
            raise AssertionError("there is no core for it")
        waiting = threading.Thread(target=lambda: troubled.sending(cores).__enter__(), daemon=True)
        waiting.start()
    waiting.join(60)
    assert not waiting.is_alive(), "it has its turn when another one is through"


def test_a_sink_in_trouble_does_not_start_when_its_turn_comes_because_all_are_called_off() -> None:
    stopping, waits, started = threading.Event(), threading.Event(), []

    def check() -> None:
        waits.set()
        if stopping.is_set():
            raise InterruptedError

    def wait_for_a_turn() -> None:
        with suppress(InterruptedError), troubled.sending(2, check):
            started.append("sent")

    troubled = TroubledSinks()
    with troubled.sending(2):
        waiting = threading.Thread(target=wait_for_a_turn, daemon=True)
        waiting.start()
        assert waits.wait(60)
        stopping.set()
    waiting.join(60)
    assert not waiting.is_alive() and started == []


@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 120))
def test_a_plan_goes_no_further_than_the_followers_that_sinks_wait_for(
    sealed: int, planned: int, followed: int
) -> None:
    planned = min(planned, sealed)  # nothing above the seal was ever planned
    found = promise_limit(Seq(sealed), Seq(planned) if planned else None, Seq(followed) if followed else None)
    assert (found or 0) <= sealed
    assert found is None or found <= max(planned, followed)
    assert (found or 0) >= planned, "what was promised stays promised"
    assert (found or 0) >= min(sealed, followed), "and what all followers have is not withheld"
