"""Which numbers a sink was sent, and which it may have been: no row that it may hold is in neither."""

from __future__ import annotations

import random
import sqlite3
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

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
from strandline.core.types import SEQ_COLUMN, DatasetId, Seq, SeqRange, SnapshotId
from strandline.iceberg.metadata.table_metadata import RecordedPurge, Ref, SnapshotView, TableView
from strandline.iceberg.spark.floor import with_neighbours
from strandline.ingest.resync.floor import forgotten_purges
from strandline.ledger.deliver.sink_exposure import LanePast, SentSpan, SinkGeneration
from strandline.maintain.purge.plan import (
    CONDITION_CHANGED,
    NOT_RECORDED,
    UNDER_WAY,
    MatchingRows,
    SentRanges,
    began_below,
    delete_condition,
    deleted_in,
    sent_ranges,
)
from strandline.maintain.purge.remaining_snapshots import RemainingSnapshots, snapshots_kept_by
from strandline.maintain.purge.remaining_snapshots import describe_remaining as shown

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEALED = Seq(100)


def holder(
    *lanes: LanePast, generation: int = 1, current: int = 1, start: int | None = None, **more: Any
) -> SinkGeneration:
    record = SinkRecord(
        SinkId(1), "i", "out", "files", DatasetId(1), current, {}, "file:///out", _seq(start), None, SinkState.ACTIVE,
        None, 0, None, NOW,
    )  # fmt: skip
    return SinkGeneration(record, generation, more.get("removed", False), lanes)


def _seq(value: int | None) -> Seq | None:
    return None if value is None else Seq(value)


def lane(mark: int | None, *spans: tuple[str | None, int, int], partition: str = "") -> LanePast:
    return LanePast(partition, _seq(mark), tuple(SentSpan(w, _seq(a or None), Seq(b)) for w, a, b in spans))


def numbers(by: dict[str | None, dict[str, list[SeqRange]]], where: str | None = None) -> list[str]:
    return [str(r) for ranges in by.get(where, {}).values() for r in ranges]


def rows(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def test_what_a_lane_has_passed_was_sent_and_nothing_else_is_held() -> None:
    found = sent_ranges(holder(lane(40, (None, 0, 40))), SEALED, {})
    assert numbers(found.sent) == [str(rows(1, 40))] and found.maybe_sent == {} and found.why == []
    assert sent_ranges(holder(), SEALED, {}) == SentRanges()


@pytest.mark.parametrize("older", [{"current": 2}, {"removed": True}])
def test_what_was_promised_beyond_the_mark_of_a_sink_that_was_reset_or_removed_may_be_there(older: Any) -> None:
    found = sent_ranges(holder(lane(40, (None, 0, 60)), **older), SEALED, {})
    assert numbers(found.sent) == [str(rows(1, 40))]
    assert numbers(found.maybe_sent) == [str(rows(41, 60))] and found.why == [UNDER_WAY]


def test_of_an_open_intent_what_landed_was_sent_and_what_is_planned_may_be_there() -> None:
    states = [(41, 50, ChunkState.LANDED), (51, 60, ChunkState.EMPTY), (61, 70, ChunkState.PLANNED)]
    chunks = tuple(Chunk(ChunkId(n), rows(a, b), s, 10, None, None, None, None, False) for n, (a, b, s) in
                   enumerate(states))  # fmt: skip
    begun = Intent(IntentId(1), LaneId(1), "", Seq(40), Seq(70), {}, NOW, None, chunks)
    found = sent_ranges(holder(lane(40, (None, 0, 70))), SEALED, {"": begun})
    assert numbers(found.sent) == [str(rows(1, 50))]
    assert numbers(found.maybe_sent) == [str(rows(61, 70))] and found.why == [UNDER_WAY]


def test_conditions_that_followed_each_other_are_told_apart_and_those_that_took_turns_are_not() -> None:
    found = sent_ranges(holder(lane(60, ("a > 1", 0, 30), ("a > 2", 30, 60))), SEALED, {})
    assert (numbers(found.sent, "a > 1"), numbers(found.sent, "a > 2")) == ([str(rows(1, 30))], [str(rows(31, 60))])
    assert found.why == []
    found = sent_ranges(holder(lane(60, ("a > 1", 0, 60), ("a > 2", 20, 40))), SEALED, {})
    assert found.sent == {} and found.why == [CONDITION_CHANGED]
    assert numbers(found.maybe_sent, "a > 1") == [str(rows(1, 60))]
    assert numbers(found.maybe_sent, "a > 2") == [str(rows(21, 40))]


def test_a_mark_that_no_intent_explains_may_stand_for_rows_that_were_sent() -> None:
    """The ledger was lost, and the lane was written anew from what the sink said."""
    found = sent_ranges(holder(lane(50, (None, 40, 50)), start=10), SEALED, {})
    assert numbers(found.maybe_sent) == [str(rows(11, 40))] and found.why == [NOT_RECORDED]
    assert numbers(sent_ranges(holder(lane(50, (None, 10, 50)), start=10), SEALED, {}).maybe_sent) == []


def test_whatever_the_past_no_number_that_was_promised_or_passed_is_left_out() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        cuts = sorted(chance.sample(range(130), 4))
        spans = [(chance.choice([None, "w"]), a, b) for a, b in pairwise(cuts)]
        by_where: dict[str | None, tuple[int, int]] = {}
        for w, a, b in spans:
            lo, hi = by_where.get(w, (a, b))
            by_where[w] = (min(a, lo), max(b, hi))
        mark = chance.choice([None, chance.randrange(1, 130)])
        past = lane(mark, *((w, a, b) for w, (a, b) in by_where.items()))
        found = sent_ranges(holder(past, removed=True), SEALED, {})
        told = {n for by in (found.sent, found.maybe_sent) for w in by for rs in by[w].values() for r in rs
                for n in range(int(r.lo), int(r.hi) + 1)}  # fmt: skip
        promised = {n for _, a, b in spans for n in range(a + 1, b + 1)} | set(range(1, (mark or 0) + 1))
        assert told == {n for n in promised if n <= SEALED}
        assert found.why or not found.maybe_sent


def test_below_the_floor_everybody_who_was_there_then_may_hold_rows_that_nobody_can_look_at() -> None:
    assert began_below(holder(lane(40, (None, 0, 40))), Seq(10))
    assert began_below(holder(lane(40)), Seq(10))
    assert began_below(holder(lane(None, (None, 0, 40)), removed=True), Seq(10))
    assert not began_below(holder(lane(40, (None, 10, 40)), start=10), Seq(10))
    assert not began_below(holder(lane(40, (None, 0, 40))), None)
    assert not began_below(holder(), Seq(10))


def told(lo: int, hi: int, count: int, number: int = 0, *ranges: SeqRange) -> RecordedPurge:
    return RecordedPurge.of(ranges or (rows(lo, hi),), count, number)


def test_a_table_is_told_of_each_purge_until_there_are_many_and_then_of_neighbours_as_one() -> None:
    known = [told(10, 20, 3, 96), told(50, 60, 4, 98), told(90, 95, 1, 97)]
    assert with_neighbours(known, told(30, 40, 2, 99)) == told(30, 40, 2, 99)
    assert with_neighbours(known, told(5, 55, 2, 99)) == told(5, 55, 5, 99), "what lies within is told by it"
    assert with_neighbours(known, told(5, 55, 2, 99, rows(5, 5), rows(55, 55))) == told(
        5, 55, 5, 99, rows(5, 5), rows(10, 20), rows(55, 55)
    ), "and is named on"
    assert with_neighbours(known, told(30, 40, 2, 99), recorded_max=3) == told(
        10, 40, 5, 99, rows(10, 20), rows(30, 40)
    )
    assert with_neighbours(known, told(62, 70, 2, 99), recorded_max=1).rows == rows(10, 95)
    assert with_neighbours(known, told(62, 70, 2, 5), recorded_max=1).number == 98, (
        "one that comes late takes nothing back"
    )


def test_a_restored_ledger_knows_which_purges_it_has_not_heard_of_however_many_were_told_as_one() -> None:
    known = [rows(1, 10_000), rows(4_000, 5_000)]
    before = [told(1, 10_000, 7, 20_000)]
    assert forgotten_purges(before, known, 20_000) == []
    after = with_neighbours(before, told(4_000, 5_000, 1, 20_001), recorded_max=1)
    assert after.rows == rows(1, 10_000), "the ends are the same"
    assert forgotten_purges([after], known, 20_000) == [after]
    assert forgotten_purges([after], known, 20_001) == []
    assert forgotten_purges([told(1, 10_000, 7)], [rows(1, 9_000)], 20_000), "told without a number: by the ends"
    assert forgotten_purges([told(1, 10_000, 7)], known, 20_000) == []


def test_what_a_table_was_told_is_read_back_and_nothing_else_is_taken_for_it() -> None:
    for purge in (told(3, 9, 4, 17), told(3, 9, 4), told(3, 9, 4, 17, rows(3, 4), rows(8, 9))):
        assert RecordedPurge.parse((purge.name, purge.value)) == purge
    assert told(3, 9, 4).value == "4" and told(3, 9, 4, 17, rows(3, 4), rows(8, 9)).value == "4 3+1 4+1"
    for value in ("4 3", "4 3 7", "4 x", "4 2 7", "4 "):
        found = RecordedPurge.parse(("strandline.purged.3-9.17", value))
        assert found is not None and found.deleted_in == (rows(3, 9),), "then rows are gone anywhere between"
    for name in ("3", "3-", "9-3.17", "0-9.17", "3-9.", "3-9.x", "3-9.17.1", "3-\u0669.17", f"3-{2**63}.17"):
        assert RecordedPurge.parse((f"strandline.purged.{name}", "4")) is None
    assert RecordedPurge.parse(("strandline.purged.3-9.17", "\u0664")) is None


def test_where_a_run_that_died_has_deleted_rows_stands_on_its_table() -> None:
    recorded = [told(3, 9, 2, 17, rows(3, 3), rows(9, 9)), told(3, 9, 2, 21, rows(3, 3), rows(5, 9)), told(1, 4, 4, 5)]
    assert deleted_in(recorded, rows(3, 9)) == (rows(3, 3), rows(5, 9)), "by any run with these ends"
    assert deleted_in(recorded, rows(3, 8)) == (rows(3, 8),), "it is recorded as one with others"
    assert deleted_in(recorded, None) == ()


# --- which rows go ---------------------------------------------------------------------------------------------------


def fitting(**values: Any) -> MatchingRows:
    empty: dict[str, Any] = dict.fromkeys(MatchingRows.__dataclass_fields__, 0) | {"sealed": SEALED, "ranges": ()}
    return MatchingRows(**(empty | values))


def goes(fits: MatchingRows, number: int | None, counter: int = 0, ours_above: tuple[SeqRange, ...] = ()) -> bool:
    """As a database that is at hand judges the condition."""
    condition = delete_condition("who = 'alice' -- ", fits, counter, ours_above)
    with sqlite3.connect(":memory:") as db:
        query = f"SELECT {condition} FROM (SELECT ? AS {SEQ_COLUMN}, 'alice' AS who)"
        return bool(db.execute(query, (number,)).fetchone()[0])


def test_a_delete_takes_no_row_that_was_not_counted() -> None:
    settled = fitting(ranges=(rows(10, 12), rows(20, 20)), rows=3, ours=2)
    assert [n for n in (None, -1, 0, 9, 10, 12, 13, 19, 20, 21, 101) if goes(settled, n, 1000)] == [10, 12, 20], (
        "a row between them that has come to match since stays: followers would keep it"
    )
    assert [n for n in (None, -1, 0, 9, 101) if goes(fitting(below=1, unnumbered=1), n, 1000)] == [None, -1, 0]
    assert not goes(fitting(), 5), "nothing was counted"
    assert (settled.total, settled.foreign, fitting(below=2, beyond=1, unnumbered=1).total) == (3, 1, 4)


def test_above_the_seal_a_row_goes_only_if_its_number_is_not_ours_and_cannot_become_ours_meanwhile() -> None:
    fits = fitting(beyond=3, near=150, far=1_000)
    assert fits.to_take(130) == 20 and fits.to_take(200) == 1
    counter = 130 + fits.to_take(130)
    judged = {n: goes(fits, n, counter, (rows(101, 120),)) for n in (50, 101, 120, 121, 150, 151, 1_000, 1_001)}
    assert [n for n, gone in judged.items() if gone] == [121, 150, 1_001]
    many = tuple(rows(n, n) for n in range(200, 2_000, 2))
    assert not goes(fits, 150, counter, many), "too many to be named: nothing above the seal goes"


# --- what still shows them -------------------------------------------------------------------------------------------


def test_whatever_still_shows_deleted_rows_is_named_with_what_keeps_it() -> None:
    parents = {1: None, 2: 1, 3: 2, 4: 3, 5: 2, 6: None}
    snapshots = {
        SnapshotId(s): SnapshotView(SnapshotId(s), None if p is None else SnapshotId(p), "append", None, 0, {}, at_ms=s)
        for s, p in parents.items()
    }
    refs = [("main", 4, True), ("side", 5, True), ("old", 1, False), ("new", 4, False)]
    rules = tuple(Ref(n, SnapshotId(s), b) for n, s, b in refs)
    named = {r.name: r.snapshot for r in rules}
    table = TableView("u", "file:/t", 2, {}, named, snapshots, {"fields": []}, 0, ref_rules=rules)
    found = snapshots_kept_by(table)
    assert found == {("branch", "main"): [3, 2, 1], ("tag", "old"): [1], ("branch", "side"): [5], ("", ""): [6]}
    assert shown(found, set()) == RemainingSnapshots(0, ())
    said = shown(found, {SnapshotId(s) for s in (1, 2, 5)})
    assert said.refs == 2 and len(said.messages) == 3
    for part, line in zip(("in its past (2)", "tag old", "branch side"), said.messages, strict=True):
        assert part in line
    assert "no branch has" in shown(found, {SnapshotId(6)}).messages[0]
