"""What retention decides, on plain values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.delivery_types import (
    Chunk,
    ChunkId,
    ChunkState,
    Intent,
    IntentId,
    LaneId,
    SinkId,
    SinkRecord,
    SinkState,
)
from strandline.core.errors import SchemaError
from strandline.core.sites.replication import OnLag
from strandline.core.types import DatasetId, Seq, SeqRange
from strandline.ledger.maintain.floors import SinkProgress
from strandline.ledger.maintain.retention_holds import Hold
from strandline.ledger.maintain.skipped_rows import LanePosition
from strandline.ledger.replicate.followers import FollowerId, RegisteredFollower
from strandline.maintain.retain_plan import (
    Awaited,
    AwaitedVerdict,
    RetainVerdict,
    drop_point,
    due_condition,
    judge,
    judge_awaited,
    numbers_condition,
    owed,
    settle_point,
)

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def sink(number: int, state: SinkState = SinkState.ACTIVE) -> SinkRecord:
    return SinkRecord(
        SinkId(number), "i", f"s{number}", "files", DatasetId(1), 1, {}, "d", None, None, state, None, 0, None, NOW
    )


def reached(number: int, at: int, state: SinkState = SinkState.ACTIVE) -> SinkProgress:
    return SinkProgress(sink(number, state), Seq(at) if at else None)


def held(number: int, since: datetime) -> Hold:
    return Hold(SinkId(number), f"s{number}", 1, since, Seq(1))


def verdict(
    *reaches: SinkProgress, due: int = 100, drop: int | None = None, paused: str = "count", holds: object = ()
) -> tuple:
    found = judge(
        reaches,
        due=Seq(due) if due else None,
        drop_due=None if drop is None else Seq(drop),
        holds=holds,  # type: ignore[arg-type]
        held_before=NOW - timedelta(days=7),
        paused_sinks=paused,
    )
    names = tuple(tuple(r.sink.name for r in some) for some in (found.holding, found.passed_over))
    return found.up_to, *names


def test_what_the_slowest_sink_has_goes_and_it_holds_the_rest() -> None:
    assert verdict() == (100, (), ())
    assert verdict(due=0) == (None, (), ())
    assert verdict(reached(1, 100), reached(2, 150)) == (100, (), ())
    assert verdict(reached(1, 40), reached(2, 60)) == (40, ("s1", "s2"), ())
    assert verdict(reached(1, 0), reached(2, 60)) == (None, ("s1", "s2"), ())


def test_a_paused_sink_counts_unless_a_person_chose_otherwise_and_a_stopped_one_always() -> None:
    both = (reached(1, 10, SinkState.PAUSED), reached(2, 50, SinkState.STOPPED))
    assert verdict(*both) == (10, ("s1", "s2"), ())
    assert verdict(*both, paused="ignore") == (50, ("s2",), ("s1",))


def test_a_sink_is_passed_over_only_after_rows_were_held_for_it_long_enough() -> None:
    long, short = NOW - timedelta(days=8), NOW - timedelta(days=6)
    assert verdict(reached(1, 10), drop=70) == (10, ("s1",), ()), "never held before"
    assert verdict(reached(1, 10), drop=70, holds=[held(1, short)]) == (10, ("s1",), ())
    assert verdict(reached(1, 10), drop=70, holds=[held(1, long)]) == (70, ("s1",), ("s1",))
    assert verdict(reached(1, 10), drop=100, holds=[held(1, long)]) == (100, (), ("s1",))
    assert verdict(reached(1, 80), drop=70, holds=[held(1, long)]) == (80, ("s1",), ())
    two = (reached(1, 10), reached(2, 20))
    assert verdict(*two, drop=70, holds=[held(1, long)]) == (20, ("s1", "s2"), ("s1",)), "another still holds"


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(SinkState)), max_size=4),
    st.integers(0, 60),
    st.none() | st.integers(1, 60),
    st.sampled_from(["count", "ignore"]),
    st.sets(st.integers(0, 3)),
)
def test_nothing_goes_that_a_sink_is_owed_unless_it_is_passed_over(
    sinks: list[tuple[int, SinkState]], due: int, drop: int | None, paused: str, held_long: set[int]
) -> None:
    reaches = [reached(n, at, state) for n, (at, state) in enumerate(sinks)]
    holds = [held(n, NOW - timedelta(days=30)) for n in held_long]
    up_to, holding, passed = verdict(*reaches, due=due, drop=drop, paused=paused, holds=holds)
    assert (up_to or 0) <= due
    for reach in reaches:
        if (up_to or 0) > (reach.number or 0):
            assert reach.sink.name in passed
        if reach.sink.name in passed:
            ignored = paused == "ignore" and reach.sink.state is SinkState.PAUSED
            assert ignored or (drop is not None and int(reach.sink.id) in held_long)
            assert ignored or (up_to or 0) <= drop
        if due > max(reach.number or 0, up_to or 0):
            assert reach.sink.name in (*holding, *passed)


# --- lanes -----------------------------------------------------------------------------------------------------------


def lane(mark: int, *ends: tuple[int, bool], name: str = "") -> LanePosition:
    """With an open intent whose chunks end there, each landed or not."""
    chunks, at = [], mark
    for n, (end, landed) in enumerate(ends):
        state = ChunkState.LANDED if landed else ChunkState.PLANNED
        rows = SeqRange(Seq(at + 1), Seq(end))
        chunks.append(Chunk(ChunkId(n), rows, state, len(rows), None, None, None, None, False))
        at = end
    after = Seq(mark) if mark else None
    begun = Intent(IntentId(1), LaneId(1), name, after, Seq(at), {}, NOW, None, tuple(chunks)) if ends else None
    return LanePosition(LaneId(1), name, after, begun)


def test_a_lane_never_comes_to_stand_inside_a_chunk_that_may_still_land() -> None:
    assert drop_point(lane(0), Seq(50)) == 50
    assert drop_point(lane(60), Seq(50)) is None
    cut = lane(10, (20, True), (30, False), (40, True))
    assert [drop_point(cut, Seq(n)) for n in (15, 20, 25, 30, 35, 40, 50)] == [20, 20, 20, 30, 40, 40, 50]
    assert drop_point(lane(10, (20, False)), Seq(15)) is None


def test_the_point_is_good_for_all_lanes_at_once() -> None:
    lanes = [lane(0, (10, False), (30, False)), lane(0, (12, False), (40, True)), lane(0)]
    assert [settle_point(Seq(n), lanes) for n in (30, 29, 11, 9, 60)] == [30, None, None, None, 60]
    assert settle_point(Seq(45), lanes) == 45 and settle_point(None, lanes) is None
    assert settle_point(Seq(29), lanes[:1]) == 10


def test_what_landed_is_not_owed() -> None:
    assert owed(lane(5), Seq(20)) == [SeqRange(Seq(6), Seq(20))]
    assert owed(lane(30), Seq(20)) == []
    cut = lane(10, (20, True), (30, False), (40, False))
    assert owed(cut, Seq(35)) == [SeqRange(Seq(21), Seq(35))]
    assert owed(cut, Seq(60)) == [SeqRange(Seq(21), Seq(60))]
    assert owed(lane(10, (20, False), (30, True)), Seq(60)) == [SeqRange(Seq(11), Seq(20)), SeqRange(Seq(31), Seq(60))]


# --- what is due -----------------------------------------------------------------------------------------------------


def test_a_condition_compares_a_column_with_a_moment_of_its_own_type() -> None:
    assert due_condition("at", "timestamptz", NOW) == "`at` < TIMESTAMP'2026-03-01 12:30:00.000000Z'"
    assert due_condition("at", "timestamp", NOW) == "`at` < TIMESTAMP_NTZ'2026-03-01 12:30:00.000000'"
    assert due_condition("a`b", "date", NOW) == "`a``b` < DATE'2026-03-01'"
    for kind in ("string", "long", "{'type': 'struct'}"):
        with pytest.raises(SchemaError):
            due_condition("at", kind, NOW)


def test_rows_that_are_not_ours_are_spared_whatever_number_they_carry() -> None:
    assert numbers_condition(Seq(9), None) == "`_ingest_seq` <= 9"
    ours = [SeqRange(Seq(1), Seq(4)), SeqRange(Seq(8), Seq(20)), SeqRange(Seq(30), Seq(40))]
    assert numbers_condition(Seq(9), ours) == (
        "`_ingest_seq` <= 9 AND (`_ingest_seq` BETWEEN 1 AND 4 OR `_ingest_seq` BETWEEN 8 AND 9)"
    )
    assert numbers_condition(Seq(9), []) == "`_ingest_seq` <= 9 AND (false)"


def site(number: int, at: int, drop_days: int | None = None, held_days: float | None = None) -> Awaited:
    on_lag, bound = (OnLag.HOLD, None) if drop_days is None else (OnLag.DROP, timedelta(days=drop_days))
    record = RegisteredFollower(FollowerId(number), f"f{number}", None, None, on_lag, bound, NOW, None)
    since = None if held_days is None else NOW - timedelta(days=held_days)
    return Awaited(record, Seq(at) if at else None, since, bound)


def judged(up_to: int, *sites: Awaited, due: int | None = 100, dropped: int = 60) -> AwaitedVerdict:
    return judge_awaited(
        RetainVerdict(Seq(up_to) if up_to else None, (), ()),
        sites,
        due=None if due is None else Seq(due),
        drop_due=lambda after: Seq(dropped) if dropped else None,
        now=NOW,
    )


def test_a_follower_holds_retention_as_a_sink_does() -> None:
    behind = site(1, 30)
    assert judged(100, behind, site(2, 100)) == AwaitedVerdict(Seq(30), (behind,), ())
    assert judged(20, behind) == AwaitedVerdict(Seq(20), (behind,), ())
    assert judged(100, site(1, 100)) == AwaitedVerdict(Seq(100), (), ())
    assert judged(100, site(1, 30), due=None) == AwaitedVerdict(None, (), ())
    fresh = site(1, 0)
    assert judged(100, fresh) == AwaitedVerdict(None, (fresh,), ())


@pytest.mark.parametrize("held_days", [None, 6.9])
def test_rows_are_not_dropped_for_a_follower_before_they_were_held_for_as_long_as_it_says(
    held_days: float | None,
) -> None:
    waits = site(1, 30, drop_days=7, held_days=held_days)
    assert judged(100, waits) == AwaitedVerdict(Seq(30), (waits,), ())


def test_rows_that_were_held_for_long_enough_are_dropped_and_the_rest_is_held() -> None:
    passed = site(1, 30, drop_days=7, held_days=7)
    assert judged(100, passed) == AwaitedVerdict(Seq(60), (passed,), (passed,))
    assert judged(100, passed, dropped=100) == AwaitedVerdict(Seq(100), (), (passed,))
    assert judged(100, passed, dropped=0) == AwaitedVerdict(Seq(30), (passed,), ())
    other = site(2, 40)
    assert judged(100, passed, other) == AwaitedVerdict(Seq(40), (passed, other), (passed,))


@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 120), st.sampled_from((None, 1, 7)), st.sampled_from((None, 0.5, 3.0, 9.0)))),
    st.integers(0, 100),
)
def test_no_follower_that_does_not_drop_loses_a_row(
    up_to: int, told: list[tuple[int, int | None, float | None]], dropped: int
) -> None:
    sites = [site(n, at, days, held) for n, (at, days, held) in enumerate(told)]
    found = judged(up_to, *sites, dropped=dropped)
    end = int(found.up_to or 0)
    assert end <= up_to
    for p in sites:
        lacks = int(p.number or 0) < end
        assert lacks == (p in found.passed_over)
        if lacks:
            assert p.drop_after is not None and p.held_since is not None and end <= dropped
            assert p.held_since <= NOW - p.drop_after
