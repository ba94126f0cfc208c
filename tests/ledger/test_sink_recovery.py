"""`sink recover`, with a destination that loses what it had: nothing that it lacks is passed over, however often."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from strandline.deliver.bench import DeliverBench
from strandline.deliver.manage import add_sink
from strandline.deliver.run import SinkRun
from strandline.deliver.sink_recovery import SinkRecovered, recover_sink
from strandline.delivery import ChunkState, LanePlan, PeerKind, SinkRecord
from strandline.errors import RefusedError, StorageError
from strandline.ledger import floors, intents, losses, sinks
from strandline.tables.schema import Column, Primitive
from strandline.types import Seq, SeqRange
from tests.ledger.conftest import LAKE, Bench
from tests.ledger.delivery_bench import Delivery, empty, landed, new_delivery, one_chunk, open_shared, planned
from tests.sinks.misbehaving import Misbehaving, misbehaving


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from open_shared(request, request.param, {"forward": {"allow": ["127.0.0.1"]}})


@pytest.fixture
def delivery(shared: Bench, tmp_path: Path) -> Delivery:
    """Its destination is a folder that is always empty: whatever was delivered is lost."""
    made = new_delivery(shared)
    out = tmp_path / "out"
    out.mkdir()
    with shared.ledger.write() as connection:
        sinks.set_options(connection, made.sink.id, {"path": str(out)}, out.as_uri())
    made.refresh()
    return made


def no_tables() -> NoReturn:
    raise AssertionError("recovery reads no table")


def recover(shared: Bench, delivery: Delivery, *, resend: bool = False) -> SinkRecovered:
    sinks.release(shared.ledger, delivery.lease)
    bench = DeliverBench(LAKE, shared.config, shared.ledger, no_tables)
    done = recover_sink(bench, delivery.dataset, delivery.sink.name, resend=resend, accept_loss=False)
    delivery.refresh()
    delivery.lease = delivery.take()
    return done


@pytest.fixture
def stranger(shared: Bench) -> Iterator[Misbehaving]:
    """A server that cannot be asked what it holds."""
    with misbehaving() as server:
        yield server


def forwarding(shared: Bench, stranger: Misbehaving) -> Delivery:
    made = new_delivery(shared, partitioned=False)
    with shared.ledger.write() as connection:
        url, options = stranger.url(), {"url": stranger.url(), "success_status": "2xx", "chunk_rows_max": "30"}
        connection.exec_driver_sql(f"UPDATE sink SET kind = 'forward' WHERE id = {made.sink.id}")
        sinks.set_options(connection, made.sink.id, options, url)
    made.refresh()
    return made


def reach(delivery: Delivery) -> Seq | None:
    with delivery.ledger.read() as connection:
        found = floors.reaches(connection, delivery.dataset.id)
    return next(r.number for r in found if r.sink.id == delivery.sink.id)


def test_what_is_sent_again_is_owed_until_it_is_there_whoever_recovers_meanwhile(
    shared: Bench, delivery: Delivery
) -> None:
    delivery.deliver(100, one_chunk("", None, 100))
    with pytest.raises(RefusedError, match=r"no longer has 1\.\.100"):
        recover(shared, delivery)
    assert recover(shared, delivery, resend=True).generation == 2
    assert (delivery.marks(), reach(delivery)) == ({"": None}, None)

    recover(shared, delivery)
    assert (delivery.marks(), reach(delivery)) == ({"": None}, None), "nothing was sent yet"
    assert delivery.plan(100, one_chunk("", None, 100))
    assert recover(shared, delivery).intents_dropped == 1
    assert (delivery.marks(), reach(delivery), delivery.open()) == ({"": None}, None, [])

    delivery.deliver(100, one_chunk("", None, 100))
    with pytest.raises(RefusedError, match=r"no longer has 1\.\.100"):
        recover(shared, delivery)
    again = recover(shared, delivery, resend=True)
    assert (again.generation, again.lost_rows, delivery.marks()) == (3, 100, {"": None})
    assert delivery.work().behind
    with delivery.ledger.read() as connection:
        assert losses.of_sink(connection, delivery.sink) == []


def test_each_partition_is_sent_again_from_where_it_began_itself(shared: Bench, delivery: Delivery) -> None:
    delivery.deliver(40, one_chunk("a", None, 40))
    stored = delivery.plan(100, one_chunk("a", 40, 100), one_chunk("b", 40, 100))
    assert stored is not None
    assert delivery.acknowledge(*(empty(i.chunks[0]) for i in stored)) and delivery.close(stored)
    for generation in (2, 3):
        assert recover(shared, delivery, resend=True).generation == generation
        assert (delivery.marks(), delivery.sink.start, reach(delivery)) == ({"a": None, "b": 100}, 100, None)
        recover(shared, delivery)
        assert (delivery.marks(), delivery.sink.planned) == ({"a": None, "b": 100}, 100)
        delivery.deliver(100, one_chunk("a", None, 100))
    delivery.settle(101, 120)
    delivery.deliver(120, one_chunk("a", 100, 120), one_chunk("b", 100, 120), one_chunk("c", 100, 120))
    recover(shared, delivery, resend=True)
    assert delivery.marks() == {"a": None, "b": 100, "c": 100}


def test_what_may_have_been_sent_to_a_server_that_cannot_be_asked_stays_and_only_the_rest_is_planned_again(
    shared: Bench, stranger: Misbehaving
) -> None:
    """Sent again in another cut it would have other keys, so that the server would take its rows once more."""
    delivery = forwarding(shared, stranger)
    cut = (planned(1, 30), planned(31, 60), planned(61, 90), planned(91, 100))
    stored = delivery.plan(100, LanePlan("", None, Seq(100), cut), chunk_rows_max="30", where="k = 'gone'")
    assert stored is not None
    [first, second, third, _] = stored[0].chunks
    assert intents.offer(shared.ledger, delivery.lease, [first.id, second.id, third.id])
    assert delivery.acknowledge(landed(second))

    done = recover(shared, delivery)
    assert (done.intents_dropped, done.intents_kept, done.repaired) == (0, 1, ())
    [kept] = delivery.open()
    assert (kept.after, kept.until, kept.options) == (None, 90, delivery.sink.options), "and with today's options"
    assert [(c.rows, c.state, c.offered) for c in kept.chunks] == [
        (SeqRange(Seq(1), Seq(30)), ChunkState.PLANNED, True),
        (SeqRange(Seq(31), Seq(60)), ChunkState.LANDED, True),
        (SeqRange(Seq(61), Seq(90)), ChunkState.PLANNED, True),
    ]
    assert (delivery.marks(), reach(delivery)) == ({"": None}, None)

    assert delivery.acknowledge(landed(kept.chunks[0]), landed(kept.chunks[2])) and delivery.close([kept])
    assert delivery.work().behind, "the next plan takes in what was never sent"
    assert delivery.plan(100, one_chunk("", 90, 100))
    assert recover(shared, delivery).intents_dropped == 1, "nothing of it was sent"
    assert (delivery.open(), delivery.marks()) == ([], {"": 90})
    assert {s.method for s in stranger.seen} == {"HEAD"}


def test_what_a_destination_is_is_stored_when_it_is_claimed_and_a_receiver_stays_one(
    shared: Bench, tmp_path: Path
) -> None:
    made = new_delivery(shared, partitioned=False)
    bench = DeliverBench(LAKE, shared.config, shared.ledger, no_tables)
    columns = [Column("_ingest_seq", Primitive("long"), required=True), Column("n", Primitive("long"))]

    def add(name: str, server: Misbehaving) -> SinkRecord:
        options = {"url": server.url(), "success_status": "2xx"}
        return add_sink(bench, made.dataset, columns, name=name, kind="forward", options=options, from_now=False)

    def claim(record: SinkRecord) -> PeerKind | None:
        lease = sinks.take_lease(shared.ledger, record.id, seconds=60)
        assert lease is not None
        run = SinkRun(bench, record, made.dataset, lease, lambda *_: None)
        try:
            run.claim()
        finally:
            run.close()
            sinks.release(shared.ledger, lease)
        with shared.ledger.read() as connection:
            return sinks.get(connection, record.name).peer

    with misbehaving(receiver=True) as receiver, misbehaving() as other:
        first = add(f"{made.sink.name}-receiver", receiver)
        second = add(f"{made.sink.name}-other", other)
        assert (first.peer, second.peer) == (PeerKind.RECEIVER, PeerKind.OTHER)
        receiver.receiver = False
        with pytest.raises(StorageError, match="it was a Strandline receiver when the sink was added"):
            claim(first)
        receiver.receiver = other.receiver = True
        assert (claim(first), claim(second)) == (PeerKind.RECEIVER, PeerKind.RECEIVER)
        with shared.ledger.write() as connection:
            assert not sinks.note_peer(connection, second.id, PeerKind.OTHER)


def test_a_ledger_that_was_restored_does_not_know_what_was_sent_since(shared: Bench, stranger: Misbehaving) -> None:
    delivery = forwarding(shared, stranger)
    assert delivery.plan(100, one_chunk("", None, 100))
    with shared.ledger.write() as connection:
        sinks.forget_leases(connection)
    assert recover(shared, delivery).intents_kept == 1


def test_only_who_holds_the_lease_offers(shared: Bench, stranger: Misbehaving) -> None:
    delivery = forwarding(shared, stranger)
    stored = delivery.plan(100, one_chunk("", None, 100))
    assert stored is not None
    late, delivery.lease = delivery.lease, delivery.lose()
    assert not intents.offer(shared.ledger, late, [c.id for c in stored[0].chunks])
    assert not any(c.offered for i in delivery.open() for c in i.chunks)
