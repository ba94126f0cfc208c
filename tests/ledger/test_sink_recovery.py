"""`sink recover`, with a destination that loses what it had: nothing that it lacks is passed over, however often."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from strandline.deliver.bench import DeliverBench
from strandline.deliver.sink_recovery import SinkRecovered, recover_sink
from strandline.errors import RefusedError
from strandline.ledger import floors, losses, sinks
from strandline.types import Seq
from tests.ledger.conftest import LAKE, Bench
from tests.ledger.delivery_bench import Delivery, empty, new_delivery, one_chunk, open_shared


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from open_shared(request, request.param)


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


def recover(shared: Bench, delivery: Delivery, *, resend: bool = False) -> SinkRecovered:
    def no_tables() -> NoReturn:
        raise AssertionError("recovery reads no table")

    sinks.release(shared.ledger, delivery.lease)
    bench = DeliverBench(LAKE, shared.config, shared.ledger, no_tables)
    done = recover_sink(bench, delivery.dataset, delivery.sink.name, resend=resend, accept_loss=False)
    delivery.refresh()
    delivery.lease = delivery.take()
    return done


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
