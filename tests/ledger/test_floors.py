"""Floors, holds, losses and drops: rows go only when nobody is owed them, or when it is counted that somebody was."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from strandline.core.delivery_types import Chunk, ChunkState, LanePlan
from strandline.core.errors import ResyncNeeded
from strandline.core.types import Seq, SeqRange
from strandline.ledger.deliver import intents, losses, sinks, splits
from strandline.ledger.deliver.losses import NewLoss, Reason
from strandline.ledger.deliver.splits import Split
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import floors, retention_holds, skipped_rows
from strandline.ledger.maintain.skipped_rows import LaneDrop
from strandline.maintain.retain_plan import drop_point
from tests.ledger.conftest import LakeState
from tests.ledger.delivery import Delivery, add_sink, landed, new_delivery, one_chunk, planned


@pytest.fixture
def delivery(shared: LakeState) -> Delivery:
    return new_delivery(shared, settled=None)


def reach(delivery: Delivery) -> int | None:
    with delivery.ledger.read() as connection:
        found = [
            r.number
            for r in floors.list_sink_progress(connection, delivery.dataset.id)
            if r.sink.id == delivery.sink.id
        ]
    return found[0]


def rise(delivery: Delivery, to: int) -> Seq:
    with delivery.ledger.write() as connection:
        floors.lock(connection, delivery.dataset.id)
        return floors.raise_to(connection, delivery.dataset.id, Seq(to))


# --- the floor -------------------------------------------------------------------------------------------------------


def test_a_floor_rises_and_never_goes_back_whoever_writes(delivery: Delivery) -> None:
    with delivery.ledger.read() as connection:
        assert floors.get(connection, delivery.dataset.id) is None
    assert [rise(delivery, n) for n in (40, 20, 60)] == [40, 40, 60]
    for change in ("UPDATE floor SET floor = 1, version = version + 1", "DELETE FROM floor"):
        with pytest.raises(IntegrityError), delivery.ledger.write() as connection:
            connection.exec_driver_sql(f"{change} WHERE dataset_id = {delivery.dataset.id}")


def test_raising_a_floor_takes_a_number_so_that_a_restore_is_noticed(lake: LakeState) -> None:
    def take() -> None:
        with lake.ledger.write() as connection:
            floors.take_number(connection, lake.witness)
            floors.raise_to(connection, lake.dataset.id, Seq(1))

    before = lake.witness.read().highest
    take()
    assert lake.witness.read().highest == before + 1
    lake.witness.raise_to(before + 2, expected=before + 1)  # as a ledger sees it that was restored from before
    with pytest.raises(ResyncNeeded):
        take()


def test_nobody_adds_a_sink_while_a_floor_is_raised(shared: LakeState, delivery: Delivery) -> None:
    """The one who comes second sees what the first one did."""
    held, waited = threading.Event(), []

    def add() -> None:
        held.wait(60)
        with delivery.ledger.write() as connection:
            floors.lock(connection, delivery.dataset.id)
            waited.append(floors.get(connection, delivery.dataset.id))

    other = threading.Thread(target=add)
    other.start()
    with delivery.ledger.write() as connection:
        floors.lock(connection, delivery.dataset.id)
        held.set()
        other.join(0.3)
        assert other.is_alive()
        floors.raise_to(connection, delivery.dataset.id, Seq(7))
    other.join(60)
    assert waited == [7]


# --- how far sinks have come -----------------------------------------------------------------------------------------


def test_a_sink_holds_everything_above_its_start_until_it_was_planned_and_delivered(delivery: Delivery) -> None:
    delivery.settle(1, 300)
    assert reach(delivery) is None
    stored = delivery.plan(100, one_chunk("k=a", None, 100))
    assert reach(delivery) is None, "an open intent needs its rows"
    assert stored is not None
    delivery.acknowledge(*(landed(c) for i in stored for c in i.chunks))
    assert reach(delivery) is None, "what landed may have to be built again until it is closed"
    delivery.close(stored)
    assert reach(delivery) == 100


def test_the_slowest_lane_counts_and_lanes_without_new_rows_do_not_hold(delivery: Delivery) -> None:
    delivery.settle(1, 300)
    delivery.deliver(100, one_chunk("k=a", None, 100), one_chunk("k=idle", None, 100))
    stored = delivery.plan(200, one_chunk("k=a", 100, 200))
    assert delivery.marks() == {"k=a": 100, "k=idle": 200} and reach(delivery) == 100
    delivery.plan(300, one_chunk("k=new", 200, 300))
    assert reach(delivery) == 100
    assert stored is not None
    delivery.acknowledge(*(landed(c) for i in stored for c in i.chunks))
    delivery.close(stored)
    assert reach(delivery) == 200, "k=a stands at 200, and what is above it was not looked for while it was busy"


def test_a_paused_or_stopped_sink_holds_and_a_removed_one_does_not(delivery: Delivery) -> None:
    with delivery.ledger.write() as connection:
        sinks.pause(connection, delivery.sink.id)
    assert reach(delivery) is None
    with delivery.ledger.write() as connection:
        sinks.stop(connection, delivery.sink.id, "why")
    assert reach(delivery) is None
    with delivery.ledger.write() as connection:
        sinks.remove(connection, delivery.sink.id)
    with delivery.ledger.read() as connection:
        assert floors.list_sink_progress(connection, delivery.dataset.id) == []


def test_each_sink_has_a_reach_of_its_own(shared: LakeState, delivery: Delivery) -> None:
    delivery.settle(1, 100)
    delivery.deliver(100, one_chunk("", None, 100))
    with shared.ledger.write() as connection:
        other = add_sink(connection, delivery.dataset, start=40)
    with delivery.ledger.read() as connection:
        found = floors.list_sink_progress(connection, delivery.dataset.id)
    assert {r.sink.id: r.number for r in found} == {delivery.sink.id: 100, other.id: 40}


# --- what is old -----------------------------------------------------------------------------------------------------


def test_only_numbers_below_every_younger_block_are_old(delivery: Delivery) -> None:
    now = utc_now()
    ages = {(1, 10): 50, (11, 20): 2, (21, 30): 40, (31, 40): 30}  # in the order of numbers; the second settled late
    for (lo, hi), days in ages.items():
        delivery.settle(lo, hi)
        with delivery.ledger.write() as connection:
            at = int((now - timedelta(days=days)).timestamp() * 1_000_000)
            connection.exec_driver_sql(
                f"UPDATE block SET changed_at = {at} WHERE dataset_id = {delivery.dataset.id} AND lo = {lo}"
            )

    def old(days: int, sealed: int | None = 40) -> int | None:
        with delivery.ledger.read() as connection:
            return floors.published_before(
                connection, delivery.dataset.id, now - timedelta(days=days), None if sealed is None else Seq(sealed)
            )

    assert [old(d) for d in (60, 45, 35, 20, 1)] == [None, 10, 10, 10, 40]
    assert old(1, sealed=20) == 20 and old(1, sealed=None) is None


# --- holds and losses ------------------------------------------------------------------------------------------------


def test_a_hold_keeps_its_beginning_and_goes_when_it_is_released_or_the_sink_is_removed(delivery: Delivery) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    with delivery.ledger.write() as connection:
        of = (connection, delivery.dataset.id, delivery.sink.id)
        assert retention_holds.keep(*of, rows=5, up_to=Seq(9), now=first)
        assert not retention_holds.keep(*of, rows=8, up_to=Seq(12), now=first + timedelta(days=1))
    with delivery.ledger.read() as connection:
        (held,) = retention_holds.of_dataset(connection, delivery.dataset.id)
    assert (held.rows, held.since, held.up_to, held.name) == (8, first, 12, delivery.sink.name)
    with delivery.ledger.write() as connection:
        assert retention_holds.release(connection, delivery.dataset.id, but=[delivery.sink.id]) == []
        sinks.remove(connection, delivery.sink.id)
        assert retention_holds.of_dataset(connection, delivery.dataset.id) == []
        assert retention_holds.release(connection, delivery.dataset.id) == [delivery.sink.name]


def test_a_loss_is_never_changed_nor_taken_back_and_the_forgotten_has_no_count(delivery: Delivery) -> None:
    with delivery.ledger.write() as connection:
        losses.add(connection, delivery.sink, Reason.DROPPED, [NewLoss("k=a", None, Seq(9), 4)])
        losses.add(connection, delivery.sink, Reason.FORGOTTEN, [NewLoss("", Seq(9), Seq(12), None)])
        losses.add_purge(connection, delivery.dataset.id, SeqRange(Seq(3), Seq(8)), 2)
    with delivery.ledger.read() as connection:
        assert [(x.range, x.rows) for x in losses.of_sink(connection, delivery.sink)] == [
            (SeqRange(Seq(1), Seq(9)), 4),
            (SeqRange(Seq(10), Seq(12)), None),
        ]
        assert sum(x.rows or 0 for x in losses.of_sink(connection, delivery.sink)) == 4
        assert sum(x.rows is None for x in losses.of_sink(connection, delivery.sink)) == 1
        assert losses.purged(connection, delivery.dataset.id) == [SeqRange(Seq(3), Seq(8))]
    for change in (
        f"UPDATE loss SET rows = 1 WHERE sink_id = {delivery.sink.id}",
        f"DELETE FROM loss WHERE sink_id = {delivery.sink.id}",
        f"DELETE FROM purge WHERE dataset_id = {delivery.dataset.id}",
    ):
        with pytest.raises(IntegrityError), delivery.ledger.write() as connection:
            connection.exec_driver_sql(change)
    for reason, rows in ((Reason.DROPPED, None), (Reason.FORGOTTEN, 3)):
        with pytest.raises(IntegrityError), delivery.ledger.write() as connection:
            losses.add(connection, delivery.sink, reason, [NewLoss("", None, Seq(1), rows)])


# --- drops -----------------------------------------------------------------------------------------------------------


def drop(delivery: Delivery, target: int) -> bool:
    with delivery.ledger.write() as connection:
        standings = skipped_rows.lane_positions(connection, delivery.sink)
        moved = [LaneDrop(s, p) for s in standings if (p := drop_point(s, Seq(target))) is not None]
        done = skipped_rows.move(
            connection, delivery.sink, delivery.lease, moved, planned=Seq(target), token=delivery.token
        )
    delivery.refresh()
    return done


def test_a_drop_moves_lanes_and_what_is_planned_and_the_next_plan_goes_on_there(delivery: Delivery) -> None:
    delivery.settle(1, 300)
    delivery.deliver(50, one_chunk("k=a", None, 50))
    assert drop(delivery, 120)
    assert delivery.marks() == {"k=a": 120} and delivery.sink.planned == 120
    assert reach(delivery) == 120
    assert delivery.plan(200, one_chunk("k=a", 120, 200), one_chunk("k=new", 120, 200))


def test_a_drop_in_the_middle_of_an_intent_keeps_what_landed_and_what_is_beyond(delivery: Delivery) -> None:
    delivery.settle(1, 300)
    cut = (planned(1, 40), planned(41, 80), planned(81, 120), planned(121, 160))
    (stored,) = delivery.plan(160, LanePlan("", None, Seq(160), cut), format="csv") or []
    delivery.acknowledge(landed(stored.chunks[0]), landed(stored.chunks[3]))
    assert drop(delivery, 80)
    lane = delivery.lanes()[""]
    assert (lane.mark, lane.exported, lane.last) == (80, 40, SeqRange(Seq(1), Seq(40)))
    (rest,) = delivery.open()
    assert (rest.after, rest.until, rest.options, rest.opened_at) == (80, 160, {"format": "csv"}, stored.opened_at)
    assert [(c.rows.lo, c.state, c.digest) for c in rest.chunks] == [
        (81, ChunkState.PLANNED, None),
        (121, ChunkState.LANDED, "of 121..160"),
    ]
    with delivery.ledger.read() as connection:
        before, _ = intents.history(connection, lane.id)
    assert before.closed_at is not None and (before.after, before.until) == (None, 80)
    assert [c.state for c in before.chunks] == [ChunkState.LANDED, ChunkState.PLANNED]
    delivery.acknowledge(landed(rest.chunks[0]))
    assert delivery.close([rest]) and delivery.marks() == {"": 160}


def test_chunks_that_were_split_before_a_drop_can_be_split_after_it(delivery: Delivery) -> None:
    delivery.settle(1, 300)
    (stored,) = delivery.plan(10, LanePlan("", None, Seq(10), (planned(1, 10),))) or []

    def halves(chunk: Chunk) -> tuple[Chunk, Chunk]:
        at = Seq(chunk.rows.lo + len(chunk.rows) // 2 - 1)
        parts = splits.split(delivery.ledger, delivery.lease, [Split(chunk.id, at, int(at - chunk.rows.lo + 1))])
        assert parts is not None
        return parts[chunk.id]

    halves(halves(stored.chunks[0])[1])
    assert drop(delivery, 5)
    (rest,) = delivery.open()
    assert [[part.rows for part in halves(chunk)] for chunk in rest.chunks if len(chunk.rows) > 1]


def test_a_drop_past_an_intent_closes_it(delivery: Delivery) -> None:
    delivery.settle(1, 300)
    (stored,) = delivery.plan(100, LanePlan("", None, Seq(100), (planned(1, 60), planned(61, 100)))) or []
    delivery.acknowledge(landed(stored.chunks[1]))
    assert drop(delivery, 150)
    assert delivery.open() == [] and delivery.marks() == {"": 150}
    assert delivery.lanes()[""].exported == 40


def test_no_mark_comes_to_stand_inside_a_chunk_that_may_still_land(delivery: Delivery) -> None:
    delivery.settle(1, 300)
    (stored,) = delivery.plan(100, LanePlan("", None, Seq(100), (planned(1, 60), planned(61, 100)))) or []
    with delivery.ledger.read() as connection:
        (standing,) = skipped_rows.lane_positions(connection, delivery.sink)
    assert [drop_point(standing, Seq(n)) for n in (30, 60, 80, 100, 150)] == [None, 60, 60, 100, 150]
    delivery.acknowledge(landed(stored.chunks[1]))
    with delivery.ledger.read() as connection:
        (standing,) = skipped_rows.lane_positions(connection, delivery.sink)
    assert drop_point(standing, Seq(80)) == 100, "it landed as a whole"


def test_a_drop_behind_a_lost_lease_changes_nothing_and_a_deliverer_behind_a_drop_neither(delivery: Delivery) -> None:
    delivery.settle(1, 300)
    stored = delivery.plan(100, one_chunk("", None, 100))
    assert stored is not None
    zombie = delivery.lease
    seized = sinks.leases.seize(delivery.ledger, delivery.sink.id, seconds=60)
    assert seized is not None
    assert not drop(delivery, 100), "with the old lease"
    assert delivery.marks() == {"": None} or delivery.marks() == {}
    delivery.lease = seized
    assert drop(delivery, 100)
    assert not delivery.acknowledge(landed(stored[0].chunks[0]), lease=zombie)
    assert not delivery.close(stored, lease=zombie)
    assert delivery.plan(200, one_chunk("", 100, 200), lease=zombie) is None
