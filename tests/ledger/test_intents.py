"""Intents, chunks and lanes: what was promised is pinned, marks move once and never back, and only behind the fence."""

from __future__ import annotations

import random
import unicodedata
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from strandline.core.delivery_types import ChunkId, ChunkPlan, ChunkState, LanePlan
from strandline.core.errors import WatermarkMoved, WatermarkUnreadable
from strandline.core.read_token import Continuation
from strandline.core.types import Seq, SeqRange
from strandline.ledger.deliver import intents, lanes, sinks, splits
from strandline.ledger.deliver.splits import Split
from strandline.ledger.engine import utc_now
from strandline.status.sinks import load_sinks
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import (
    Delivery,
    add_sink,
    empty,
    landed,
    new_delivery,
    one_chunk,
    planned,
)


def test_a_plan_is_stored_as_it_was_cut_and_moves_the_lanes_that_have_nothing_new(delivery: Delivery) -> None:
    delivery.settle(101, 300)
    delivery.deliver(100, one_chunk("k=a", None, 100), one_chunk("k=b", None, 100), one_chunk("k=c", None, 100))
    stays = delivery.plan(200, one_chunk("k=c", 100, 200))
    plan = LanePlan("k=a", Seq(200), Seq(300), (planned(201, 240, 7), planned(241, 300, 0)))
    stored = delivery.plan(300, plan, one_chunk("k=new", 200, 300), format="csv")
    assert stays is not None and stored is not None
    assert delivery.open() == sorted([*stays, *stored], key=lambda i: i.lane)
    first = stored[0]
    assert (first.partition, first.after, first.until, first.options) == ("k=a", 200, 300, {"format": "csv"})
    assert [(c.rows, c.expected, c.state) for c in first.chunks] == [
        (SeqRange(201, 240), 7, ChunkState.PLANNED),
        (SeqRange(241, 300), 0, ChunkState.PLANNED),
    ]
    assert delivery.sink.planned == 300
    assert delivery.marks() == {"k=a": 200, "k=b": 300, "k=c": 100, "k=new": 200}


def test_a_lane_that_was_busy_is_behind_and_goes_on_from_its_own_mark(delivery: Delivery) -> None:
    delivery.settle(101, 200)
    stored = delivery.plan(50, one_chunk("k=a", None, 50), one_chunk("k=b", None, 50))
    assert stored is not None
    work = delivery.work()
    assert (work.open_intents, work.behind, work.unplanned_rows) == (2, False, 150)
    delivery.acknowledge(*(landed(i.chunks[0]) for i in stored))
    delivery.close(stored[1:])
    delivery.plan(200)
    assert delivery.marks() == {"k=a": None, "k=b": 200}
    assert not delivery.work().behind, "it has an open intent"
    delivery.close(stored[:1])
    work = delivery.work()
    assert (work.open_intents, work.behind, work.unplanned_rows) == (0, True, 0)
    assert delivery.plan(200, one_chunk("k=a", 50, 200))
    assert (delivery.marks(), delivery.work().behind) == ({"k=a": 50, "k=b": 200}, False)


def test_a_lane_without_a_mark_is_behind_once_something_is_planned(delivery: Delivery) -> None:
    with delivery.ledger.write() as connection:
        lanes.rebuild(connection, delivery.sink, "k=a", mark=None, token=delivery.token, last=None)
    assert not delivery.work().behind
    delivery.plan(100)
    assert delivery.marks() == {"k=a": 100}
    with delivery.ledger.write() as connection:
        lanes.rebuild(connection, delivery.sink, "k=b", mark=None, token=delivery.token, last=None)
    assert delivery.work().behind


def test_a_plan_without_rows_moves_all_marks_and_a_dataset_without_partitions_has_its_lane(shared: LakeState) -> None:
    delivery = new_delivery(shared, partitioned=False)
    assert delivery.plan(60) == []
    assert (delivery.marks(), delivery.sink.planned) == ({"": 60}, 60)
    assert delivery.plan(100) == []
    lane = delivery.lanes()[""]
    assert (lane.mark, lane.version, lane.exported, lane.last) == (100, 2, 0, None)
    partitioned = new_delivery(shared)
    assert (partitioned.plan(100), partitioned.marks()) == ([], {})


BAD_PLANS = {
    "a gap": [LanePlan("k=a", Seq(10), Seq(90), (planned(11, 40), planned(42, 90)))],
    "an overlap": [LanePlan("k=a", Seq(10), Seq(90), (planned(11, 40), planned(40, 90)))],
    "a late start": [LanePlan("k=a", Seq(10), Seq(90), (planned(12, 90),))],
    "an early end": [LanePlan("k=a", Seq(10), Seq(90), (planned(11, 89),))],
    "no chunks": [LanePlan("k=a", Seq(10), Seq(90), ())],
    "a lane beyond the plan": [one_chunk("k=a", 10, 91)],
    "a lane twice": [one_chunk("k=a", 10, 90), one_chunk("k=a", 10, 90)],
    "not the lane's mark": [one_chunk("k=a", 9, 90)],
    "a new lane from elsewhere": [one_chunk("k=new", None, 90)],
    "a lane with an open intent": [one_chunk("k=busy", None, 90)],
}


def test_a_plan_that_does_not_fit_is_not_stored(delivery: Delivery) -> None:
    stored = delivery.plan(10, one_chunk("k=a", None, 10), one_chunk("k=busy", None, 10))
    assert stored is not None
    delivery.acknowledge(landed(stored[0].chunks[0]))
    delivery.close(stored[:1])
    before = (delivery.sink, delivery.marks(), delivery.open())
    for what, plans in BAD_PLANS.items():
        with pytest.raises(ValueError):
            delivery.plan(90, *plans)
        delivery.refresh()
        assert (delivery.sink, delivery.marks(), delivery.open()) == before, what
    with pytest.raises(ValueError, match="seal"):
        delivery.plan(101)
    assert (delivery.sink, delivery.marks()) == before[:2]


def test_a_plan_made_from_an_old_look_at_the_sink_is_not_stored(delivery: Delivery) -> None:
    seen = delivery.sink
    delivery.plan(50, one_chunk("k=a", None, 50))
    delivery.sink = seen
    with pytest.raises(WatermarkMoved):
        delivery.plan(100)
    delivery.refresh()
    assert delivery.sink.planned == 50


def test_whoever_lost_the_lease_can_neither_plan_nor_acknowledge_nor_close(delivery: Delivery) -> None:
    zombie = delivery.lease
    stored = delivery.plan(50, one_chunk("k=a", None, 50))
    assert stored is not None
    delivery.lease = delivery.lose()
    assert delivery.plan(100, lease=zombie) is None
    assert not delivery.acknowledge(landed(stored[0].chunks[0]), lease=zombie)
    assert delivery.open() == stored and delivery.sink.planned == 50
    assert delivery.acknowledge(landed(stored[0].chunks[0]))
    assert not delivery.close(stored, lease=zombie)
    assert delivery.marks() == {"k=a": None}
    assert delivery.close(stored)
    assert delivery.marks() == {"k=a": 50}


def test_an_acknowledgement_is_recorded_once_and_its_repeat_changes_nothing(delivery: Delivery) -> None:
    plan = LanePlan("k=a", None, Seq(100), (planned(1, 30), planned(31, 60), planned(61, 100)))
    stored = delivery.plan(100, plan)
    assert stored is not None
    first, second, third = stored[0].chunks
    assert delivery.acknowledge(landed(first, 25, 5), empty(second, 3))
    assert delivery.acknowledge(landed(first, 25, 5), empty(second, 3), landed(third))
    now = delivery.open()[0].chunks
    assert [(c.state, c.count, c.withheld) for c in now] == [("landed", 25, 5), ("empty", 0, 3), ("landed", 40, 0)]
    assert (now[0].digest, now[0].size, now[1].digest) == ("of 1..30", 8, None)
    for other in (landed(first, 24, 5), empty(first), landed(second), replace(landed(third), digest="another")):
        with pytest.raises(WatermarkMoved):
            delivery.acknowledge(other)
    with pytest.raises(WatermarkMoved):
        delivery.acknowledge(replace(landed(first), chunk=ChunkId(10**9)))
    with pytest.raises(ValueError):
        delivery.acknowledge(replace(empty(first), state=ChunkState.PLANNED))
    assert delivery.open()[0].chunks == now


def test_a_chunk_of_another_sink_cannot_be_acknowledged(shared: LakeState, delivery: Delivery) -> None:
    other = new_delivery(shared)
    stored = other.plan(100, one_chunk("k=a", None, 100))
    assert stored is not None
    with pytest.raises(WatermarkMoved):
        delivery.acknowledge(landed(stored[0].chunks[0]))


def test_closing_moves_the_mark_and_counts_what_was_exported_and_withheld(delivery: Delivery) -> None:
    delivery.settle(101, 200)
    found = ChunkPlan(SeqRange(1, 30), 28, ChunkState.LANDED, 27, "its own", 5)
    unknown = ChunkPlan(SeqRange(31, 50), 20, ChunkState.LANDED)
    nothing = ChunkPlan(SeqRange(91, 100), 0, ChunkState.EMPTY)
    stored = delivery.plan(
        100, LanePlan("k=a", None, Seq(100), (found, unknown, planned(51, 70), planned(71, 90), nothing))
    )
    assert stored is not None
    chunks = stored[0].chunks
    assert [c.found for c in chunks] == [True, True, False, False, False]
    with pytest.raises(WatermarkMoved):
        delivery.close(stored)  # two chunks are not settled
    assert delivery.acknowledge(landed(chunks[2], 15, 5), empty(chunks[3], 20), landed(chunks[0]))
    assert delivery.close(stored)
    lane = delivery.lanes()["k=a"]
    assert (lane.mark, lane.exported, lane.withheld) == (100, 27 + 20 + 15, 25)
    assert (lane.last, lane.version) == (SeqRange(51, 70), 2)
    assert Continuation(LAKE, delivery.dataset.uuid, Seq(100)).encode() == lane.continuation
    assert delivery.close(stored), "the answer to the commit may have been lost"
    assert (delivery.lanes()["k=a"], delivery.open()) == (lane, [])

    later = delivery.plan(200, one_chunk("k=a", 100, 200))
    assert later is not None and delivery.acknowledge(empty(later[0].chunks[0], 4)) and delivery.close(later)
    lane = delivery.lanes()["k=a"]
    assert (lane.mark, lane.exported, lane.withheld, lane.last) == (200, 62, 29, SeqRange(51, 70))
    with delivery.ledger.read() as connection:
        assert [(i.until, i.closed_at is not None) for i in intents.history(connection, lane.id)] == [
            (100, True),
            (200, True),
        ]
        touched = intents.chunks_of(connection, lane.id, after=Seq(60), until=Seq(91))
        assert [c.rows for c in touched] == [SeqRange(51, 70), SeqRange(71, 90), SeqRange(91, 100)]
        assert len(intents.chunks_of(connection, lane.id, after=None, until=Seq(200))) == 6


def test_an_intent_is_closed_only_from_exactly_the_mark_that_it_starts_from(delivery: Delivery) -> None:
    stored = delivery.plan(50, one_chunk("k=a", None, 50), one_chunk("k=b", None, 50))
    assert stored is not None
    delivery.acknowledge(*(landed(i.chunks[0]) for i in stored))
    delivery.damage("UPDATE lane SET mark = 20, version = version + 1 WHERE sink_id = :sink AND partition = 'k=b'")
    with pytest.raises(WatermarkMoved, match="k=b"):
        delivery.close(stored)
    assert len(delivery.open()) == 2, "all or none"
    with pytest.raises(WatermarkMoved):
        delivery.close([replace(stored[0], until=Seq(60))])
    assert delivery.close(stored[:1])


def test_after_a_reset_the_old_generation_moves_no_more_and_the_new_one_has_lanes_of_its_own(
    delivery: Delivery,
) -> None:
    delivery.deliver(50, one_chunk("k=a", None, 50))
    stored = delivery.plan(100, one_chunk("k=a", 50, 100))
    assert stored is not None
    old = delivery.sink
    delivery.reset(20)
    assert (delivery.open(), delivery.lanes(), delivery.work().unplanned_rows) == ([], {}, 80)
    delivery.lease = delivery.take()
    delivery.acknowledge(landed(stored[0].chunks[0]))
    for sink in (old, delivery.sink):
        with pytest.raises(WatermarkMoved):
            intents.close(delivery.ledger, delivery.lease, sink, stored, delivery.token)
    delivery.deliver(100, one_chunk("k=a", 20, 100))
    with delivery.ledger.read() as connection:
        before = {lane.partition: lane.mark for lane in lanes.unchecked(connection, old)}
    assert (before, delivery.marks()) == ({"k=a": 50}, {"k=a": 100})


NAMES = [
    "",
    "k=",
    "k=~",
    "k=%7E",
    "a=b/c=d",
    "a=b%2Fc=d",
    "a_b",
    "a/b",
    "K=",
    "k= ",
    "k=" + unicodedata.normalize("NFC", "é"),
    "k=" + unicodedata.normalize("NFD", "é"),
    "k=ß",
    "k=ss",
    "k=\u200b",
    "k=🌊",
    "k=" + "x" * 900,
    # PostgreSQL indexes at most about 2,700 bytes, and compresses before it counts: hence random.
    "k=" + random.Random(1).randbytes(10_000).hex(),
    "k=" + random.Random(1).randbytes(10_000).hex() + "0",
]


def test_partitions_are_kept_apart_whatever_their_names_hold(delivery: Delivery) -> None:
    stored = delivery.plan(100, *(one_chunk(name, None, 100) for name in NAMES))
    assert stored is not None and sorted(i.partition for i in stored) == sorted(NAMES)
    only = next(i for i in stored if i.partition == "k=")
    delivery.acknowledge(landed(only.chunks[0]))
    delivery.close([only])
    assert delivery.marks() == {name: 100 if name == "k=" else None for name in NAMES}
    assert list(delivery.marks()) == sorted(NAMES)
    with delivery.ledger.read() as connection:
        of = {"lake": LAKE, "dataset": delivery.dataset.uuid}
        found = lanes.list_lanes(connection, delivery.sink, **of)
        assert [f.partition for f in found] == sorted(NAMES)


def test_a_mark_that_disagrees_with_itself_stops_and_says_where_and_what_to_do(delivery: Delivery) -> None:
    delivery.deliver(50, one_chunk("k=a", None, 50), one_chunk("k=b", None, 50))
    good = delivery.token(Seq(50))
    elsewhere = Continuation("another", delivery.dataset.uuid, Seq(50)).encode()
    for bad in ("", "nonsense", good[:-3], delivery.token(Seq(49)), delivery.token(None), elsewhere):
        delivery.damage(
            f"UPDATE lane SET continuation = '{bad}', version = version + 1 WHERE sink_id = :sink AND partition = 'k=b'"
        )
        with pytest.raises(WatermarkUnreadable, match=f"{delivery.sink.name}.*'k=b'") as refused:
            delivery.lanes()
        assert f"strandline sink recover {delivery.sink.name}" in (refused.value.hint or "")
        with delivery.ledger.read() as connection:
            assert [lane.mark for lane in lanes.unchecked(connection, delivery.sink)] == [50, 50]
    with delivery.ledger.write() as connection:
        rebuilt = lanes.rebuild(
            connection, delivery.sink, "k=b", mark=Seq(50), token=delivery.token, last=SeqRange(41, 50)
        )
    assert delivery.lanes()["k=b"] == rebuilt
    assert (rebuilt.mark, rebuilt.continuation, rebuilt.last, rebuilt.exported) == (50, good, SeqRange(41, 50), 50)


def test_recovery_raises_a_mark_but_never_lowers_it_and_leaves_an_open_intent_its_start(delivery: Delivery) -> None:
    def rebuild(mark: int, last: SeqRange | None = None) -> lanes.Lane:
        with delivery.ledger.write() as connection:
            return lanes.rebuild(connection, delivery.sink, "k=a", mark=Seq(mark), token=delivery.token, last=last)

    delivery.deliver(30, one_chunk("k=a", None, 30))
    assert rebuild(40, SeqRange(31, 40)).last == SeqRange(31, 40)
    with pytest.raises(WatermarkUnreadable) as refused:
        rebuild(39)
    assert "reset" in (refused.value.hint or "")
    stored = delivery.plan(100, one_chunk("k=a", 40, 100))
    assert stored is not None
    kept = rebuild(100, SeqRange(41, 100))
    assert (kept.mark, kept.last) == (40, SeqRange(31, 40)), "what was promised is finished with its own cut"
    delivery.acknowledge(landed(stored[0].chunks[0]))
    assert delivery.close(stored)
    assert delivery.marks() == {"k=a": 100}


def test_recovery_knows_the_highest_number_that_any_sink_of_a_dataset_has_passed(delivery: Delivery) -> None:
    def highest() -> int | None:
        with delivery.ledger.read() as connection:
            return lanes.highest_watermark(connection, delivery.dataset.id)

    assert highest() is None
    delivery.plan(60, one_chunk("k=a", None, 60))
    assert highest() == 60
    with delivery.ledger.write() as connection:
        other = add_sink(connection, delivery.dataset, start=70)
        lanes.rebuild(connection, other, "k=a", mark=Seq(80), token=delivery.token, last=None)
    assert highest() == 80
    with delivery.ledger.write() as connection:
        sinks.remove(connection, other.id)
    assert highest() == 60


def test_lag_is_in_rows_and_time_and_unknown_where_only_a_plan_could_count(delivery: Delivery) -> None:
    def lag() -> tuple[int | None, bool]:
        found = load_sinks(delivery.ledger, LAKE, delivery.sink.name, now=utc_now() + timedelta(minutes=1))[0]
        return found.sink_lag_rows, bool(found.sink_lag_seconds)

    assert lag() == (100, True)
    stored = delivery.plan(
        60, LanePlan("k=a", None, Seq(60), (planned(1, 30, 3), planned(31, 60, 4))), one_chunk("k=b", None, 60)
    )
    assert stored is not None
    assert lag() == (40 + 3 + 4 + 60, True)
    delivery.acknowledge(landed(stored[0].chunks[0]), landed(stored[1].chunks[0]))
    assert lag() == (40 + 4, True)
    delivery.close(stored[1:])
    delivery.plan(100)
    assert lag() == (None, True), "rows of the busy lane above its intent were not counted by anybody"
    delivery.acknowledge(landed(stored[0].chunks[1]))
    delivery.close(stored[:1])
    assert lag() == (None, True)
    delivery.plan(100)
    assert (delivery.marks(), lag()) == ({"k=a": 100, "k=b": 100}, (0, False))


def test_a_plan_of_1500_lanes_costs_a_handful_of_statements(delivery: Delivery) -> None:
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(delivery.ledger.engine, "before_cursor_execute", note)
    try:
        stored = delivery.plan(100, *(one_chunk(f"k={n}", None, 100) for n in range(1500)))
        assert stored is not None and len(stored) == 1500
        assert delivery.acknowledge(*(landed(i.chunks[0]) for i in stored))
        assert delivery.close(stored)
    finally:
        event.remove(delivery.ledger.engine, "before_cursor_execute", note)
    assert len(statements) < 40, "one for each lane"
    assert set(delivery.marks().values()) == {100}


def test_70_000_busy_lanes_do_not_stop_the_plan_of_the_others(delivery: Delivery) -> None:
    """More than a statement has parameters: 32,766 on SQLite, 65,535 on PostgreSQL."""
    delivery.deliver(50, one_chunk("k=busy", None, 50), one_chunk("k='\"\\", None, 50), one_chunk("k=idle", None, 50))
    left_out = {"k=busy", "k='\"\\", *(f"k={n}" for n in range(70_000))}
    stored = intents.store_plan(
        delivery.ledger,
        delivery.lease,
        delivery.sink,
        until=Seq(100),
        lanes=(),
        options={},
        token=delivery.token,
        left_out=left_out,
    )
    assert stored == []
    assert delivery.marks() == {"k=busy": 50, "k='\"\\": 50, "k=idle": 100}


def test_the_store_refuses_an_illegal_change_of_a_lane_an_intent_or_a_chunk(delivery: Delivery) -> None:
    delivery.deliver(50, one_chunk("k=a", None, 50))
    of_lane = "WHERE sink_id = :sink"
    in_lane = "lane_id IN (SELECT id FROM lane WHERE sink_id = :sink)"
    assert delivery.is_refused(f"UPDATE intent SET closed_at = NULL WHERE {in_lane}"), "a closed intent stays closed"
    delivery.plan(100, LanePlan("k=a", Seq(50), Seq(100), (planned(51, 70), planned(71, 100))))
    ack = "row_count = 20, withheld = 0, digest = 'd', acked_at = 1"
    for illegal in (
        f"UPDATE lane SET mark = 49, last_lo = NULL, last_hi = NULL, version = version + 1 {of_lane}",
        f"UPDATE lane SET mark = NULL, last_lo = NULL, last_hi = NULL, version = version + 1 {of_lane}",
        f"UPDATE lane SET mark = 60 {of_lane}",
        f"UPDATE lane SET mark = 60, version = version - 1 {of_lane}",
        f"UPDATE lane SET exported = exported - 1, version = version + 1 {of_lane}",
        f"UPDATE lane SET partition = 'k=b', version = version + 1 {of_lane}",
        f"UPDATE lane SET generation = 2, version = version + 1 {of_lane}",
        f"UPDATE lane SET last_hi = 51, version = version + 1 {of_lane}",
        f"INSERT INTO lane (sink_id, generation, partition, continuation, exported, withheld, version, updated_at) "
        f"SELECT sink_id, generation, partition, continuation, 0, 0, 1, 1 FROM lane {of_lane}",
        f"UPDATE intent SET until = 99 WHERE closed_at IS NULL AND {in_lane}",
        f"UPDATE intent SET after = NULL WHERE closed_at IS NULL AND {in_lane}",
        f'UPDATE intent SET options = \'{{"a": "b"}}\' WHERE closed_at IS NULL AND {in_lane}',
        f"INSERT INTO intent (lane_id, after, until, options, opened_at) "
        f"SELECT id, 100, 200, '{{}}', 1 FROM lane {of_lane}",
        f"UPDATE chunk SET hi = hi + 1 WHERE lo = 51 AND {in_lane}",
        f"UPDATE chunk SET lo = 52 WHERE lo = 51 AND {in_lane}",
        f"UPDATE chunk SET expected = 1 WHERE lo = 51 AND {in_lane}",
        f"UPDATE chunk SET state = 'landed', acked_at = 1 WHERE lo = 51 AND {in_lane}",
        f"UPDATE chunk SET state = 'empty', {ack} WHERE lo = 51 AND {in_lane}",
        f"UPDATE chunk SET {ack} WHERE lo = 51 AND {in_lane}",
        f"UPDATE chunk SET state = 'empty', row_count = 0 WHERE lo = 1 AND {in_lane}",
        f"UPDATE chunk SET digest = 'other' WHERE lo = 1 AND {in_lane}",
        f"UPDATE chunk SET state = 'planned', row_count = NULL, withheld = NULL, digest = NULL, size = NULL, "
        f"acked_at = NULL WHERE lo = 1 AND {in_lane}",
        f"INSERT INTO chunk (intent_id, lane_id, lo, hi, state, expected, found) "
        f"SELECT intent_id, lane_id, 71, 80, 'planned', 1, found FROM chunk WHERE lo = 51 AND {in_lane}",
    ):
        assert delivery.is_refused(illegal), illegal
    delivery.damage(f"UPDATE chunk SET state = 'landed', {ack} WHERE lo = 51 AND {in_lane}")
    delivery.damage(f"UPDATE lane SET mark = 51, version = version + 1 {of_lane}")


MARKS = st.one_of(st.none(), st.integers(1, 2**63 - 1))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(values=st.lists(MARKS, min_size=2, max_size=6))
def test_whoever_writes_in_whatever_order_a_mark_never_goes_back(
    shared_sqlite: LakeState, values: list[int | None]
) -> None:
    delivery = new_delivery(shared_sqlite, settled=None)
    with delivery.ledger.write() as connection:
        lanes.rebuild(connection, delivery.sink, "k=a", mark=None, token=delivery.token, last=None)
    stands = 0
    for value in values:
        new = "NULL" if value is None else value
        refused = delivery.is_refused(f"UPDATE lane SET mark = {new}, version = version + 1 WHERE sink_id = :sink")
        assert refused == ((value or 0) < stands)
        stands = max(stands, value or 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plan", "plan", "finish", "takeover", "reset"]),
        st.integers(1, 40),
        st.sets(st.sampled_from("abc")),
    ),
    min_size=3,
    max_size=9,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(steps=STEPS)
def test_in_any_order_of_plans_and_closings_the_delivered_ranges_tile_up_to_every_mark(
    shared_sqlite: LakeState, steps: list[tuple[str, int, set[str]]]
) -> None:
    delivery = new_delivery(shared_sqlite, settled=1000)
    before: dict[str, int | None] = {}
    for what, more, names in steps:
        busy = {i.partition: i for i in delivery.open()}
        match what:
            case "plan":
                until = (delivery.sink.planned or 0) + more
                marks = {f"k={n}": before.get(f"k={n}", delivery.sink.planned) for n in sorted(names)}
                delivery.plan(until, *(one_chunk(p, m, until) for p, m in marks.items() if p not in busy))
            case "finish":
                done = [i for p, i in busy.items() if p[-1] in names]
                assert delivery.acknowledge(*(landed(i.chunks[0]) for i in done)) and delivery.close(done)
            case "takeover":
                delivery.lease = delivery.lose()
            case "reset":
                delivery.reset(more)
                delivery.lease, before = delivery.take(), {}
        now = delivery.marks()
        assert all((now[p] or 0) >= (m or 0) for p, m in before.items())
        before = now
    for lane in delivery.lanes().values():
        with delivery.ledger.read() as connection:
            closed = [i for i in intents.history(connection, lane.id) if i.closed_at is not None]
        assert all((a.until <= (b.after or 0)) for a, b in pairwise(closed))
        assert lane.exported == sum(len(c.rows) for i in closed for c in i.chunks)
        assert (lane.mark or 0) >= max((i.until for i in closed), default=0)


def planned_ranges(delivery: Delivery) -> list[SeqRange]:
    return [c.rows for i in delivery.open() for c in i.chunks if c.state is ChunkState.PLANNED]


def test_a_refused_chunk_is_replaced_by_its_two_parts_and_the_same_again_gives_the_same_parts(
    delivery: Delivery,
) -> None:
    plans = [one_chunk("k=a", None, 100), one_chunk("k=b", None, 100)]
    stored = delivery.plan(100, *plans)
    assert stored is not None
    [first], [second] = stored[0].chunks, stored[1].chunks
    wanted = [Split(first.id, Seq(40), 30), Split(second.id, Seq(40), 40)]
    parts = splits.split(delivery.ledger, delivery.lease, wanted)
    assert parts is not None and list(parts) == [first.id, second.id]
    assert [(c.rows, c.expected, c.state) for c in parts[first.id]] == [
        (SeqRange(1, 40), 30, ChunkState.PLANNED),
        (SeqRange(41, 100), 70, ChunkState.PLANNED),
    ]
    assert not {first.id, second.id} & {c.id for pair in parts.values() for c in pair}, "an id is never used again"
    assert splits.split(delivery.ledger, delivery.lease, wanted) == parts
    assert [i.chunks for i in delivery.open()] == [parts[first.id], parts[second.id]]
    assert [(i.id, i.after, i.until) for i in delivery.open()] == [(i.id, i.after, i.until) for i in stored]


def test_parts_are_split_on_until_rows_stand_alone_and_the_intent_closes_over_them(delivery: Delivery) -> None:
    stored = delivery.plan(8, one_chunk("k=a", None, 8))
    assert stored is not None
    while wide := [c for i in delivery.open() for c in i.chunks if len(c.rows) > 1]:
        cuts = [Split(c.id, Seq((c.rows.lo + c.rows.hi) // 2), c.expected // 2) for c in wide]
        assert splits.split(delivery.ledger, delivery.lease, cuts) is not None
    [now] = delivery.open()
    assert [c.rows for c in now.chunks] == [SeqRange(n, n) for n in range(1, 9)]
    assert sum(c.expected for c in now.chunks) == 8
    with pytest.raises(WatermarkMoved):
        delivery.acknowledge(landed(stored[0].chunks[0]))  # an answer that comes too late for the whole
    assert delivery.acknowledge(*(landed(c) for c in now.chunks[1:]), empty(now.chunks[0]))
    assert delivery.close([now])
    assert (delivery.marks(), delivery.lanes()["k=a"].exported) == ({"k=a": 8}, 7)


def test_a_split_behind_a_lost_lease_changes_nothing(delivery: Delivery) -> None:
    stored = delivery.plan(100, one_chunk("k=a", None, 100))
    assert stored is not None
    lost = delivery.lease
    delivery.lease = delivery.lose()
    cut = [Split(stored[0].chunks[0].id, Seq(50), 50)]
    assert splits.split(delivery.ledger, lost, cut) is None
    assert planned_ranges(delivery) == [SeqRange(1, 100)]
    other = new_delivery(LakeState(delivery.ledger.config, delivery.ledger, None, delivery.dataset))  # type: ignore[arg-type]
    with pytest.raises(WatermarkMoved):
        splits.split(other.ledger, other.lease, cut)
    assert planned_ranges(delivery) == [SeqRange(1, 100)]


def test_only_a_planned_chunk_is_split_and_only_in_one_way_and_all_or_none(delivery: Delivery) -> None:
    plan = LanePlan("k=a", None, Seq(100), (planned(1, 50), planned(51, 90), planned(91, 100)))
    stored = delivery.plan(100, plan)
    assert stored is not None
    first, second, third = stored[0].chunks
    delivery.acknowledge(landed(first))
    ledger, lease = delivery.ledger, delivery.lease
    with pytest.raises(WatermarkMoved):
        splits.split(ledger, lease, [Split(second.id, Seq(60), 10), Split(first.id, Seq(20), 20)])
    for nonsense in (Split(second.id, Seq(50), 0), Split(second.id, Seq(90), 0), Split(second.id, Seq(60), 41)):
        with pytest.raises(ValueError):
            splits.split(ledger, lease, [Split(third.id, Seq(95), 5), nonsense])
    with pytest.raises(ValueError):
        splits.split(ledger, lease, [Split(second.id, Seq(60), 10), Split(second.id, Seq(70), 20)])
    assert planned_ranges(delivery) == [SeqRange(51, 90), SeqRange(91, 100)], "nothing was split"
    assert splits.split(ledger, lease, [Split(second.id, Seq(60), 10)]) is not None
    with pytest.raises(WatermarkMoved):
        splits.split(ledger, lease, [Split(second.id, Seq(70), 20)])
    assert planned_ranges(delivery) == [SeqRange(51, 60), SeqRange(61, 90), SeqRange(91, 100)]


def test_a_chunk_of_an_intent_that_was_abandoned_is_not_split(delivery: Delivery) -> None:
    stored = delivery.plan(100, one_chunk("k=a", None, 100))
    assert stored is not None
    delivery.reset()
    delivery.lease = delivery.take()
    with pytest.raises(WatermarkMoved):
        splits.split(delivery.ledger, delivery.lease, [Split(stored[0].chunks[0].id, Seq(50), 50)])


def test_many_chunks_are_split_in_one_transaction(shared_sqlite: LakeState) -> None:
    delivery = new_delivery(shared_sqlite)
    stored = delivery.plan(100, *(one_chunk(f"k={n}", None, 100) for n in range(1_200)))
    assert stored is not None
    cuts = [Split(i.chunks[0].id, Seq(50), 50) for i in stored]
    parts = splits.split(delivery.ledger, delivery.lease, cuts)
    assert parts is not None and len(parts) == 1_200
    assert planned_ranges(delivery) == [SeqRange(1, 50), SeqRange(51, 100)] * 1_200
