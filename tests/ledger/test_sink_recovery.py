"""`sink recover`, with a destination that loses what it had: nothing that it lacks is passed over, however often."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.delivery_types import ChunkState, LanePlan, PeerKind, SinkRecord
from strandline.core.errors import RefusedError, SinkStopped, StorageError
from strandline.core.types import Dataset, Seq, SeqRange
from strandline.deliver import manage_sinks
from strandline.deliver.context import DeliverContext
from strandline.deliver.generation_start import find_beginning
from strandline.deliver.manage_sinks import add_sink, remove_sink, reset_sink
from strandline.deliver.plan.older_generations import check_foundations, compare_older
from strandline.deliver.recover_sink import SinkRecovered, recover_sink
from strandline.deliver.sink_session import SinkRun
from strandline.deliver.verify.ranges import Fault, VerifyFinding
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.ledger.deliver import intents, losses, sinks
from strandline.ledger.maintain import floors
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, empty, landed, new_delivery, one_chunk, open_shared, planned
from tests.no_tables import NoTables
from tests.sinks.misbehaving import Misbehaving, misbehaving


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[LakeState]:
    yield from open_shared(request, request.param, {"forward": {"allow": ["127.0.0.1"]}})


@pytest.fixture
def delivery(shared: LakeState, tmp_path: Path) -> Delivery:
    """Its destination is a folder that is always empty: whatever was delivered is lost."""
    made = new_delivery(shared)
    out = tmp_path / "out"
    out.mkdir()
    with shared.ledger.write() as connection:
        sinks.set_options(connection, made.sink.id, {"path": str(out)}, out.as_uri())
    made.refresh()
    return made


COLUMNS = [Column("_ingest_seq", Primitive("long"), required=True), Column("n", Primitive("long"))]


def recover(shared: LakeState, delivery: Delivery, *, resend: bool = False, accept_loss: bool = False) -> SinkRecovered:
    sinks.leases.release(shared.ledger, delivery.lease)
    context = DeliverContext(LAKE, shared.config, shared.ledger, NoTables())
    done = recover_sink(context, delivery.dataset, delivery.sink.name, resend=resend, accept_loss=accept_loss)
    delivery.refresh()
    delivery.lease = delivery.take()
    return done


@pytest.fixture
def stranger(shared: LakeState) -> Iterator[Misbehaving]:
    """A server that cannot be asked what it holds."""
    with misbehaving() as server:
        yield server


def forwarding(shared: LakeState, stranger: Misbehaving) -> Delivery:
    made = new_delivery(shared, partitioned=False)
    with shared.ledger.write() as connection:
        url, options = stranger.url(), {"url": stranger.url(), "success_status": "2xx", "chunk_rows_max": "30"}
        connection.exec_driver_sql(f"UPDATE sink SET kind = 'forward' WHERE id = {made.sink.id}")
        sinks.set_options(connection, made.sink.id, options, url)
    made.refresh()
    return made


def reach(delivery: Delivery) -> Seq | None:
    with delivery.ledger.read() as connection:
        found = floors.list_sink_progress(connection, delivery.dataset.id)
    return next(r.number for r in found if r.sink.id == delivery.sink.id)


def test_what_is_sent_again_is_owed_until_it_is_there_whoever_recovers_meanwhile(
    shared: LakeState, delivery: Delivery
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


def test_each_partition_is_sent_again_from_where_it_began_itself(shared: LakeState, delivery: Delivery) -> None:
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
    shared: LakeState, stranger: Misbehaving
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
    shared: LakeState, tmp_path: Path
) -> None:
    made = new_delivery(shared, partitioned=False)
    context = DeliverContext(LAKE, shared.config, shared.ledger, NoTables())

    def add(name: str, server: Misbehaving) -> SinkRecord:
        options = {"url": server.url(), "success_status": "2xx"}
        return add_sink(context, made.dataset, COLUMNS, name=name, kind="forward", options=options, from_now=False)

    def claim(record: SinkRecord) -> PeerKind | None:
        lease = sinks.leases.take(shared.ledger, record.id, seconds=60)
        assert lease is not None
        run = SinkRun(context, record, made.dataset, lease, lambda *_: None)
        try:
            run.claim()
        finally:
            run.close()
            sinks.leases.release(shared.ledger, lease)
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


@pytest.mark.parametrize("then", ["resend", "accept the loss", "is added again"])
def test_what_a_generation_builds_on_that_sends_some_rows_again_is_asked_for(shared: LakeState, then: str) -> None:
    def hold(*ranges: tuple[int, int]) -> None:
        receiver.ranges = [[lo, hi, hi - lo + 1, "sha256:aa", 8] for lo, hi in ranges]

    def check() -> None:
        run = SinkRun(context, delivery.sink, delivery.dataset, delivery.lease, lambda *_: None)
        try:
            check_foundations(run, [""])
        finally:
            run.close()

    def compare() -> list[VerifyFinding]:
        run = SinkRun(context, delivery.sink, delivery.dataset, delivery.lease, lambda *_: None)
        try:
            return compare_older(run, list(delivery.lanes().values()))
        finally:
            run.close()

    context = DeliverContext(LAKE, shared.config, shared.ledger, NoTables())
    with misbehaving(receiver=True) as receiver:
        delivery = forwarding(shared, receiver)
        delivery.deliver(40, one_chunk("", None, 40))
        delivery.deliver(60, one_chunk("", 40, 60))
        hold((1, 40))
        assert recover(shared, delivery, resend=True).generation == 2
        assert delivery.lanes()[""].builds_on == delivery.marks()[""] == 40
        check()
        assert [(f.kind, str(f.range)) for f in compare()] == [(Fault.NOTE, "1..40")]
        hold((1, 40), (41, 60))
        assert delivery.plan(60, one_chunk("", 40, 60))
        hold((1, 40))
        assert recover(shared, delivery, resend=True).generation == 2, "nothing is lost, so nothing is sent again"

        hold()
        if then == "is added again":
            sinks.leases.release(shared.ledger, delivery.lease)
            sink, generation = delivery.sink, 2
            remove_sink(context, sink.name)
            with shared.ledger.write() as connection:
                begins = find_beginning(connection, delivery.dataset.id, sink.instance, generation)
            assert begins is not None and (begins.start, begins.lanes) == (60, {"": (40, 40)})
            return
        with pytest.raises(SinkStopped, match=r"no longer has 1\.\.40, which it acknowledged in generation 1"):
            check()
        assert [(f.kind, str(f.range)) for f in compare()] == [(Fault.MISSING, "1..40")]
        with pytest.raises(RefusedError, match=r"no longer has 1\.\.40"):
            recover(shared, delivery)
        if then == "resend":
            again = recover(shared, delivery, resend=True)
            assert (again.generation, again.lost_rows, delivery.marks()) == (3, 40, {"": None})
        else:
            given_up = recover(shared, delivery, accept_loss=True)
            assert (given_up.generation, given_up.lost_rows, delivery.marks()) == (2, 40, {"": 40})
        check()


def test_a_generation_that_began_anew_builds_on_nothing(shared: LakeState) -> None:
    """A person may have emptied the destination before the reset."""
    context = DeliverContext(LAKE, shared.config, shared.ledger, NoTables())
    with misbehaving(receiver=True) as receiver:
        delivery = forwarding(shared, receiver)
        delivery.deliver(40, one_chunk("", None, 40))
        delivery.reset(30)
        delivery.lease = delivery.take()
        assert delivery.plan(60, one_chunk("", 30, 60))
        check_foundations(SinkRun(context, delivery.sink, delivery.dataset, delivery.lease, lambda *_: None), [""])


@pytest.mark.parametrize("began_by", ["reset", "resend"])
def test_a_sink_that_is_added_again_goes_on_from_where_its_generation_began(
    shared: LakeState, delivery: Delivery, began_by: str
) -> None:
    context = DeliverContext(LAKE, shared.config, shared.ledger, NoTables())

    def claim() -> None:
        run = SinkRun(context, delivery.sink, delivery.dataset, delivery.lease, lambda *_: None)
        run.claim()
        run.close()

    claim()
    delivery.deliver(40, one_chunk("a", None, 40))
    delivery.deliver(60, one_chunk("b", 40, 60))
    if began_by == "reset":
        sinks.leases.release(shared.ledger, delivery.lease)
        reset_sink(context, delivery.dataset, delivery.sink.name, delivery.token(Seq(30)))
        delivery.refresh()
        delivery.lease = delivery.take()
    else:
        recover(shared, delivery, resend=True)
    claim()
    before = (delivery.sink.generation, delivery.sink.start, delivery.marks())
    assert before == ((2, 30, {}) if began_by == "reset" else (2, 60, {"a": None, "b": None}))
    if began_by == "resend":
        delivery.deliver(60, one_chunk("a", None, 60), one_chunk("b", None, 60))
        delivery.deliver(80, one_chunk("a", 60, 80))
    sinks.leases.release(shared.ledger, delivery.lease)
    remove_sink(context, delivery.sink.name)

    def add(dataset: Dataset, **how: bool) -> SinkRecord:
        options = dict(delivery.sink.options)
        given = {"from_now": False, **how}
        return add_sink(context, dataset, COLUMNS, name=delivery.sink.name, kind="files", options=options, **given)

    delivery.sink = add(delivery.dataset)
    assert (delivery.sink.generation, delivery.sink.start, delivery.marks()) == before
    assert delivery.work().sealed == 100 and (began_by == "reset" or delivery.work().behind)

    sinks.leases.release(shared.ledger, delivery.take())
    remove_sink(context, delivery.sink.name)
    with shared.ledger.write() as connection:  # as in a ledger that was made anew
        connection.exec_driver_sql("UPDATE sink SET instance = instance || '-unknown' WHERE removed_at IS NOT NULL")
    with pytest.raises(RefusedError, match="does not know where that began") as refused:
        add(delivery.dataset)
    assert refused.value.hint and "rows up to 100 that the place does not have yet are never sent" in refused.value.hint
    with pytest.raises(RefusedError, match="does not know where that began"):
        add(delivery.dataset, from_now=True, may_skip=False)  # as `apply` does
    delivery.sink = add(delivery.dataset, from_now=True)
    assert delivery.sink.start == 100
    with shared.ledger.read() as connection:
        (left_out,) = losses.of_sink(connection, delivery.sink)
    assert (str(left_out.range), left_out.rows, left_out.reason) == ("1..100", None, losses.Reason.FORGOTTEN)


def test_a_sink_for_new_rows_that_is_added_again_loses_none_that_came_meanwhile(
    shared: LakeState, tmp_path: Path
) -> None:
    context = DeliverContext(LAKE, shared.config, shared.ledger, NoTables())
    delivery = new_delivery(shared, partitioned=False)
    options = {"path": str(tmp_path / "new")}

    def add(*, from_now: bool) -> SinkRecord:
        name, how = f"{delivery.sink.name}-new", {"from_now": from_now, "may_skip": False}
        return add_sink(context, delivery.dataset, COLUMNS, name=name, kind="files", options=options, **how)

    def begins(*, from_now: bool) -> Seq | None:
        made = add(from_now=from_now)
        with shared.ledger.read() as connection:
            assert losses.of_sink(connection, made) == []
        remove_sink(context, made.name)
        return made.start

    assert begins(from_now=True) == 100, "a place that is new"
    delivery.settle(101, 150)
    assert begins(from_now=True) == 100, "101..150 came while it was away"
    with shared.ledger.write() as connection:  # as in a ledger that was made anew
        connection.exec_driver_sql("UPDATE sink SET instance = instance || '-unknown' WHERE removed_at IS NOT NULL")
    assert begins(from_now=True) is None, "by the place's own record, and by nothing else"
    assert begins(from_now=False) is None


def test_who_changes_a_sink_that_was_changed_meanwhile_is_told(
    shared: LakeState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = DeliverContext(LAKE, shared.config, shared.ledger, NoTables())
    delivery = new_delivery(shared)
    name, before = f"{delivery.sink.name}-other", {"path": str(tmp_path / "other")}
    add_sink(context, delivery.dataset, COLUMNS, name=name, kind="files", options=before, from_now=False)
    before, opened = dict(shared.ledger.query(sinks.get, name).options), manage_sinks.open_sink

    def update(**options: str) -> SinkRecord:
        return manage_sinks.update_sink(context, delivery.dataset, COLUMNS, name, options)

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(manage_sinks, "open_sink", opened)
        update(where="n = 1")
        return opened(*given)

    monkeypatch.setattr(manage_sinks, "open_sink", meanwhile)
    with pytest.raises(RefusedError, match=f"another process has changed sink {name} meanwhile"):
        update(chunk_rows_max="7")
    assert shared.ledger.query(sinks.get, name).options == before | {"where": "n = 1"}
    assert update(chunk_rows_max="7").options == before | {"where": "n = 1", "chunk_rows_max": "7"}


def test_a_ledger_that_was_restored_does_not_know_what_was_sent_since(shared: LakeState, stranger: Misbehaving) -> None:
    delivery = forwarding(shared, stranger)
    assert delivery.plan(100, one_chunk("", None, 100))
    with shared.ledger.write() as connection:
        sinks.forget_leases(connection)
    assert recover(shared, delivery).intents_kept == 1


def test_only_who_holds_the_lease_offers(shared: LakeState, stranger: Misbehaving) -> None:
    delivery = forwarding(shared, stranger)
    stored = delivery.plan(100, one_chunk("", None, 100))
    assert stored is not None
    late, delivery.lease = delivery.lease, delivery.lose()
    assert not intents.offer(shared.ledger, late, [c.id for c in stored[0].chunks])
    assert not any(c.offered for i in delivery.open() for c in i.chunks)
