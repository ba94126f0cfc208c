"""Sinks in the ledger: names and places kept apart, one deliverer at a time, and what is due."""

from __future__ import annotations

import shutil
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from strandline.core.delivery_types import SinkState
from strandline.core.errors import NoSuchSink, RefusedError
from strandline.core.types import Lease, Seq
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import blocks
from strandline.status.sinks import load_sinks
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, add_sink, new_delivery, one_chunk


def test_a_sink_is_found_as_it_was_given(shared: LakeState) -> None:
    with shared.ledger.write() as connection:
        options = {"path": "out", "key": "env:KEY", "odd": 'quote " and ünicode'}
        added = sinks.add(
            connection,
            instance="i",
            name="found",
            kind="files",
            dataset=shared.dataset.id,
            options=options,
            destination="file:///found",
            start=Seq(40),
            generation=3,
        )
        assert sinks.get(connection, "found") == sinks.find(connection, "found") == added
        assert added in sinks.list_sinks(connection) and added in sinks.of_dataset(connection, shared.dataset.id)
    assert (added.options, added.generation, added.state, added.failures) == (options, 3, SinkState.ACTIVE, 0)
    assert added.start == added.planned == 40, "what lies at or below the start needs no plan"


def test_a_name_or_a_destination_that_is_taken_is_refused_until_its_sink_is_removed(delivery: Delivery) -> None:
    taken = delivery.sink

    def again(name: str, destination: str) -> None:
        with delivery.ledger.write() as connection:
            sinks.add(
                connection,
                instance="i",
                name=name,
                kind="s3",
                dataset=delivery.dataset.id,
                options={},
                destination=destination,
                start=None,
            )

    with pytest.raises(RefusedError, match="named") as refused:
        again(taken.name, "file:///elsewhere")
    assert refused.value.hint
    with pytest.raises(RefusedError, match=taken.name) as refused:
        again(f"{taken.name}-other", taken.destination)
    assert refused.value.hint
    delivery.plan(100, one_chunk("k=a", None, 100))
    with delivery.ledger.write() as connection:
        assert sinks.remove(connection, taken.id)
        assert not sinks.remove(connection, taken.id)
    again(taken.name, taken.destination)
    delivery.refresh()
    assert delivery.sink.id != taken.id and delivery.open() == [], "it has nothing of the one before"
    assert delivery.work().open_intents == 0


def test_a_sink_that_is_not_there_is_said_with_those_that_are(delivery: Delivery) -> None:
    with delivery.ledger.read() as connection, pytest.raises(NoSuchSink) as refused:
        sinks.get(connection, "nowhere")
    assert delivery.sink.name in (refused.value.hint or "")


def test_options_change_for_the_next_intent_and_never_onto_anothers_destination(delivery: Delivery) -> None:
    stored = delivery.plan(100, one_chunk("k=a", None, 100), format="csv")
    assert stored is not None and stored[0].options == {"format": "csv"}
    with delivery.ledger.write() as connection:
        other = add_sink(connection, delivery.dataset)
        assert sinks.set_options(connection, delivery.sink.id, {"format": "jsonl"}, delivery.sink.destination)
        with pytest.raises(RefusedError, match=other.name):
            sinks.set_options(connection, delivery.sink.id, {}, other.destination)
    delivery.refresh()
    assert delivery.sink.options == {"format": "jsonl"}
    assert delivery.open()[0].options == {"format": "csv"}


def test_two_changes_at_the_same_time_do_not_undo_each_other(delivery: Delivery) -> None:
    id, place, read = delivery.sink.id, delivery.sink.destination, delivery.sink.options
    with delivery.ledger.write() as connection:
        assert sinks.set_options(connection, id, {**read, "where": "n = 'ü'"}, place, expected=read)
    with delivery.ledger.write() as connection:
        assert not sinks.set_options(connection, id, {**read, "chunk_rows_max": "7"}, place, expected=read)
    delivery.refresh()
    assert delivery.sink.options == {**read, "where": "n = 'ü'"}
    with delivery.ledger.write() as connection:
        assert sinks.set_options(connection, id, read, place, expected=delivery.sink.options)


def test_how_a_sink_fares_is_kept_and_why_it_stopped_is_not_overwritten(delivery: Delivery) -> None:
    id, later = delivery.sink.id, utc_now() + timedelta(minutes=1)
    with delivery.ledger.write() as connection:
        assert not sinks.clear_failures(connection, id), "nothing was wrong"
        assert sinks.failed(connection, id, "no answer", later) and sinks.failed(connection, id, "slow", later)
    delivery.refresh()
    assert (delivery.sink.failures, delivery.sink.reason, delivery.sink.retry_at) == (2, "slow", later)
    assert delivery.sink.state is SinkState.ACTIVE
    with delivery.ledger.write() as connection:
        assert sinks.clear_failures(connection, id)
        assert sinks.pause(connection, id) and not sinks.pause(connection, id)
        assert sinks.stop(connection, id, "it lacks what it had")
        assert not sinks.failed(connection, id, "slow", later) and not sinks.clear_failures(connection, id)
    delivery.refresh()
    assert (delivery.sink.state, delivery.sink.reason) == (SinkState.STOPPED, "it lacks what it had")
    with delivery.ledger.write() as connection:
        assert sinks.pause(connection, id) and not sinks.pause(connection, id)
    delivery.refresh()
    assert (delivery.sink.state, delivery.sink.reason) == (SinkState.PAUSED, "it lacks what it had")
    with delivery.ledger.write() as connection:
        assert sinks.resume(connection, id) and not sinks.resume(connection, id)
    delivery.refresh()
    assert (delivery.sink.state, delivery.sink.reason, delivery.sink.failures) == (SinkState.ACTIVE, None, 0)


def test_a_new_generation_starts_anew_and_takes_the_lease_away(delivery: Delivery) -> None:
    delivery.plan(100, one_chunk("k=a", None, 100))
    with delivery.ledger.write() as connection:
        sinks.stop(connection, delivery.sink.id, "a test")
        again = sinks.new_generation(connection, delivery.sink.id, 4, Seq(30))
        assert (again.generation, again.start, again.planned, again.state) == (4, 30, 30, SinkState.ACTIVE)
        assert not sinks.leases.holds(connection, delivery.lease)
        for generation in (3, 4):
            with pytest.raises(RefusedError):
                sinks.new_generation(connection, delivery.sink.id, generation, None)
        assert sinks.new_generation(connection, delivery.sink.id, 5, None).planned is None


def test_a_lease_is_held_by_one_until_it_is_released_or_runs_out(delivery: Delivery) -> None:
    ledger, first = delivery.ledger, delivery.lease
    assert sinks.leases.take(ledger, delivery.sink.id, seconds=60) is None
    assert sinks.leases.renew(ledger, first, seconds=-1)
    with ledger.read() as connection:
        assert sinks.leases.holds(connection, first), "it ran out, but nobody took it over"
    second = delivery.take()
    with ledger.read() as connection:
        assert sinks.leases.holds(connection, second) and not sinks.leases.holds(connection, first)
    assert not sinks.leases.renew(ledger, first, seconds=60) and not sinks.leases.release(ledger, first)
    assert sinks.leases.take(ledger, delivery.sink.id, seconds=60) is None, "a late release freed another's lease"
    assert sinks.leases.release(ledger, second)
    third = delivery.take()
    with ledger.write() as connection:
        sinks.remove(connection, delivery.sink.id)
        assert not sinks.leases.holds(connection, third)
    assert not sinks.leases.renew(ledger, third, seconds=60)
    assert sinks.leases.take(ledger, delivery.sink.id, seconds=60) is None


def test_of_racing_takers_exactly_one_gets_a_lease(shared: LakeState, delivery: Delivery) -> None:
    sinks.leases.release(delivery.ledger, delivery.lease)
    ledgers = [Ledger(shared.config) for _ in range(2)]
    won: list[Lease] = []
    ready = threading.Barrier(6)

    def take(ledger: Ledger) -> None:
        ready.wait()
        lease = sinks.leases.take(ledger, delivery.sink.id, seconds=60)
        if lease is not None:
            won.append(lease)

    threads = [threading.Thread(target=take, args=(ledgers[n % 2],)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for ledger in ledgers:
        ledger.close()
    assert len(won) == 1
    with delivery.ledger.read() as connection:
        assert sinks.leases.holds(connection, won[0])


def test_nobody_takes_the_lease_between_the_look_at_it_and_the_end_of_the_transaction(delivery: Delivery) -> None:
    assert sinks.leases.renew(delivery.ledger, delivery.lease, seconds=-1)
    taken: list[Lease] = []
    other = threading.Thread(target=lambda: taken.append(delivery.take()))
    with delivery.ledger.write() as connection:
        assert sinks.leases.holds(connection, delivery.lease)
        other.start()
        other.join(timeout=0.1)
        assert not taken
    other.join()
    with delivery.ledger.read() as connection:
        assert sinks.leases.holds(connection, taken[0]) and not sinks.leases.holds(connection, delivery.lease)


def test_a_restored_ledger_never_gives_a_token_again_and_forgets_who_held_one(
    sqlite_lake: LakeState, tmp_path: Path
) -> None:
    delivery = new_delivery(sqlite_lake)
    ledger, kept = delivery.ledger, delivery.lease
    assert ledger.path is not None
    ledger.backup(tmp_path / "copy.db")
    tokens = {kept.token}
    for _ in range(3):
        shutil.copyfile(tmp_path / "copy.db", ledger.path)
        with ledger.write() as connection:
            assert sinks.leases.holds(connection, kept), "the copy was made while it was held"
            assert sinks.forget_leases(connection) == 1
            assert not sinks.leases.holds(connection, kept)
        tokens.add(delivery.take().token)
    assert len(tokens) == 4


def test_what_is_due_says_what_there_is_to_do(lake: LakeState) -> None:
    other = lake.add_dataset("default.other")
    with lake.ledger.write() as connection:
        of_events, of_other = add_sink(connection, lake.dataset), add_sink(connection, other)
        within = add_sink(connection, lake.dataset, start=4)

    def look() -> list[tuple[int | None, int]]:
        with lake.ledger.read() as connection:
            found = {w.sink.id: w for w in sinks.due(connection)}
            sealed = {s.id: blocks.sealed(connection, s.dataset) for s in (of_events, of_other, within)}
        assert {id: w.sealed for id, w in found.items()} == sealed
        assert all((w.oldest_unplanned is None) == (w.unplanned_rows == 0) for w in found.values())
        return [(w.sealed, w.unplanned_rows) for w in found.values()]

    assert look() == [(None, 0), (None, 0), (None, 0)]
    first = lake.publish(lake.reserve("a", 10))
    waits = lake.reserve("b", 5, dataset=other)
    lake.publish(lake.reserve("c", 20))
    lake.publish(lake.reserve("d", 7, dataset=other))
    assert look() == [(35, 30), (None, 0), (35, 26)], "the open block of another dataset does not matter"
    lake.publish(waits)
    assert look() == [(35, 30), (42, 12), (35, 26)]
    with lake.ledger.read() as connection:
        oldest = {w.sink.id: w.oldest_unplanned for w in sinks.due(connection)}
    assert oldest[of_events.id] == oldest[within.id] == first.published_at


def test_only_active_sinks_are_due(delivery: Delivery) -> None:
    id = delivery.sink.id

    def is_due() -> bool:
        with delivery.ledger.read() as connection:
            return any(w.sink.id == id for w in sinks.due(connection))

    assert is_due()
    for change in (sinks.pause, lambda c, i: sinks.stop(c, i, "a test"), sinks.remove):
        with delivery.ledger.write() as connection:
            assert change(connection, id)
        assert not is_due()
        with delivery.ledger.write() as connection:
            sinks.resume(connection, id)


def test_what_is_due_is_one_statement_that_walks_over_no_lanes_or_blocks(sqlite_lake: LakeState) -> None:
    delivery = new_delivery(sqlite_lake)
    delivery.deliver(100, *(one_chunk(f"k={n}", None, 100) for n in range(50)))
    statements: list[tuple[str, tuple[object, ...]]] = []
    event.listen(
        delivery.ledger.engine, "before_cursor_execute", lambda *a: statements.append((a[2], a[3])), named=False
    )
    work = delivery.work()
    assert (work.open_intents, work.behind, work.unplanned_rows) == (0, False, 0)
    assert len(statements) == 1
    with delivery.ledger.read() as connection:
        plan = [r[3] for r in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statements[0][0]}", statements[0][1])]
    scanned = {step.split()[1] for step in plan if step.startswith("SCAN")}
    assert scanned <= {"sink", "due", "busy", "intent"}, plan
    assert "SCAN intent USING INDEX one_open_intent" in plan, plan


def test_the_store_refuses_an_illegal_change_of_a_sink(delivery: Delivery) -> None:
    delivery.reset(10)
    for illegal in (
        "planned = planned - 1",
        "planned = NULL",
        "start = 5",
        "generation = generation - 1",
        "generation = generation + 1, planned = 0",
        "dataset_id = dataset_id - 1",
        "state = 'asleep'",
        "state = 'stopped', reason = NULL",
        "failures = -1",
        "lease_token = 'x', lease_until = NULL",
    ):
        assert delivery.is_refused(f"UPDATE sink SET {illegal} WHERE id = :sink"), illegal
    with delivery.ledger.write() as connection:
        sinks.remove(connection, delivery.sink.id)
    assert delivery.is_refused("UPDATE sink SET removed_at = NULL WHERE id = :sink")


def test_only_a_higher_generation_may_be_planned_anew(delivery: Delivery) -> None:
    delivery.plan(100)
    delivery.damage("UPDATE sink SET generation = generation + 1, planned = 7, start = 7 WHERE id = :sink")
    delivery.refresh()
    assert (delivery.sink.planned, delivery.lanes(), delivery.open()) == (7, {}, [])
    [found] = load_sinks(delivery.ledger, LAKE, delivery.sink.name)
    assert found.sink_lag_rows == 93
