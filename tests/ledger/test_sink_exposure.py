"""Who was promised which numbers, and where else rows of a dataset are kept: nothing that was is forgotten."""

from __future__ import annotations

from strandline.core.types import Seq
from strandline.ledger.deliver import quarantine, sink_exposure, sinks
from strandline.ledger.deliver.quarantine import NOT_DELIVERED, StoredRefusedRow
from strandline.ledger.deliver.sink_exposure import LanePast, SentSpan, SinkGeneration
from strandline.ledger.ingest import reject_folders
from strandline.ledger.ingest.reject_folders import RejectFolder
from strandline.ledger.receive import batches
from tests.ledger.conftest import LakeState
from tests.ledger.delivery import Delivery, landed, one_chunk
from tests.ledger.receiving import new_receiving


def of(delivery: Delivery) -> list[SinkGeneration]:
    with delivery.ledger.read() as connection:
        return sink_exposure.of_dataset(connection, delivery.dataset.id)


def deliver(delivery: Delivery, after: int | None, until: int, **options: str) -> None:
    stored = delivery.plan(until, one_chunk("", after, until), **options)
    assert stored is not None
    assert delivery.acknowledge(*(landed(c) for i in stored for c in i.chunks)) and delivery.close(stored)


def test_every_generation_is_known_by_its_marks_and_by_what_was_promised_under_which_condition(
    delivery: Delivery,
) -> None:
    assert [(h.generation, h.lanes, h.is_current) for h in of(delivery)] == [(1, (), True)]
    deliver(delivery, None, 10, where="a > 1")
    deliver(delivery, 10, 20, where="a > 1", chunk_rows_max="5")
    deliver(delivery, 20, 30)
    delivery.plan(40, one_chunk("", 30, 40))
    spans = (SentSpan("a > 1", None, Seq(20)), SentSpan(None, Seq(20), Seq(40)))
    assert [h.lanes for h in of(delivery)] == [(LanePast("", Seq(30), spans),)]

    delivery.reset()
    assert [(h.generation, h.is_current, len(h.lanes)) for h in of(delivery)] == [(1, False, 1), (2, True, 0)]
    with delivery.ledger.write() as connection:
        sinks.remove(connection, delivery.sink.id)
    [only] = of(delivery)
    assert (only.generation, only.removed, only.is_current, only.lanes[0].spans) == (1, True, False, spans)


def test_rows_that_a_removed_sink_refused_are_found_by_their_dataset(delivery: Delivery) -> None:
    stored = delivery.plan(1, one_chunk("", None, 1))
    assert stored is not None
    [chunk] = stored[0].chunks
    aside = StoredRefusedRow(stored[0].lane, Seq(1), "no", "an object", 9, {}, "rows")
    assert quarantine.quarantine_rows(delivery.ledger, delivery.lease, [(chunk.id, aside)])
    with delivery.ledger.write() as connection:
        sinks.remove(connection, delivery.sink.id)
    with delivery.ledger.read() as connection:
        [found] = quarantine.of_dataset(connection, delivery.dataset.id, NOT_DELIVERED)
    assert (found.seq, found.sink) == (1, delivery.sink.id)
    assert quarantine.discard(delivery.ledger, found.id)
    with delivery.ledger.read() as connection:
        assert quarantine.of_dataset(connection, delivery.dataset.id, NOT_DELIVERED) == []


def test_a_folder_of_rejected_rows_is_noted_once(delivery: Delivery) -> None:
    for _ in range(2):
        reject_folders.note(delivery.ledger, delivery.dataset.id, RejectFolder("here", "/data/rejects"))
    reject_folders.note(delivery.ledger, delivery.dataset.id, RejectFolder("there", "/data/rejects"))
    with delivery.ledger.read() as connection:
        assert [f.node for f in reject_folders.of_dataset(connection, delivery.dataset.id)] == ["here", "there"]


def test_bodies_that_came_later_are_not_among_those_that_waited(shared: LakeState) -> None:
    receiving = new_receiving(shared)
    dataset = receiving.dataset.id
    with receiving.ledger.read() as connection:
        assert batches.waiting(connection, dataset) == (0, 0)
    receiving.accept("a", rows=2)
    with receiving.ledger.read() as connection:
        waited, last = batches.waiting(connection, dataset)
    receiving.accept("b", rows=2)
    with receiving.ledger.read() as connection:
        assert waited == 1 and batches.waiting(connection, dataset)[0] == 2
        assert batches.waiting(connection, dataset, up_to=last) == (1, last)
