"""Batches of received bodies: every body is in one, once, whoever forms, takes and finishes them."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate

import pytest

from strandline.core.errors import BlockLost
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import batches, receive_report
from strandline.ledger.receive.batches import Batch
from tests.ledger.conftest import LakeState
from tests.ledger.receiving import Receiving, at_once, by_range, in_table, new_receiving, span

HOUR = timedelta(hours=1)


def formed(receiving: Receiving, **given: int) -> Batch:
    batch = receiving.form(**given)
    assert batch is not None
    return batch


def is_due(receiving: Receiving, rows_max: int = 1_000_000, waited: timedelta = timedelta(0)) -> bool:
    with receiving.ledger.read() as connection:
        found = batches.due(connection, rows_max=rows_max, older_than=utc_now() - waited)
    return receiving.dataset.id in found


def test_bodies_wait_for_others_until_they_are_many_or_old(receiving: Receiving) -> None:
    assert receiving.form() is None and not is_due(receiving)
    receiving.accept("a", "b", rows=10)
    assert receiving.form(rows_max=21, waited=HOUR) is None and not is_due(receiving, 21, HOUR)
    assert is_due(receiving, 20, HOUR) and is_due(receiving)
    batch = receiving.form(rows_max=20, waited=HOUR)
    assert batch is not None and (batch.rows, len(batch.bodies)) == (20, 2)
    receiving.accept("c")
    assert receiving.form(waited=HOUR) is None
    assert formed(receiving).rows == 10


def test_a_batch_holds_bodies_in_their_order_each_behind_the_rows_before_it(receiving: Receiving) -> None:
    sizes = [5, 1, 7, 2, 30, 3]
    bodies = [receiving.accept(f"key {n}", rows=rows)[0] for n, rows in enumerate(sizes)]
    receiving.accept("without rows", rows=0)
    made = [formed(receiving, rows_max=15) for _ in range(3)]
    assert receiving.form() is None
    assert [[b.rows for b in batch.bodies] for batch in made] == [[5, 1, 7, 2], [30], [3]]
    assert [b.spool for batch in made for b in batch.bodies] == [b.spool for b in bodies]
    for batch in made:
        assert [b.place for b in batch.bodies] == [0, *accumulate(b.rows for b in batch.bodies)][:-1]
        assert batch.rows == sum(b.rows for b in batch.bodies)
        assert (batch.dataset, batch.failures, batch.reason) == (receiving.dataset.id, 0, None)
    assert len({batch.batch_id for batch in made}) == 3
    assert [(t.batch_id, t.bodies) for t in receiving.take()] == [(m.batch_id, m.bodies) for m in made]


def test_a_batch_of_tiny_bodies_is_full_when_they_are_many(receiving: Receiving) -> None:
    receiving.accept(*map(str, range(5)), rows=1)
    assert [len(formed(receiving, bodies_max=2).bodies) for _ in range(2)] == [2, 2]
    assert receiving.form(waited=HOUR, bodies_max=2) is None


def test_batches_of_one_dataset_hold_nothing_of_another(receiving: Receiving, shared: LakeState) -> None:
    other = new_receiving(shared)
    [mine], [theirs] = receiving.accept("a"), other.accept("a")
    assert [b.spool for b in formed(receiving).bodies] == [mine.spool]
    assert [b.spool for b in formed(other).bodies] == [theirs.spool]


def test_batches_that_are_formed_at_once_hold_every_body_once(receiving: Receiving, shared: LakeState) -> None:
    receiving.accept(*(f"key {n}" for n in range(200)), rows=3)

    def form_all(ledger: Ledger) -> list[Batch]:
        made = []
        while (one := batches.form(ledger, receiving.dataset.id, rows_max=20, older_than=utc_now())) is not None:
            made.append(one)
        return made

    found = [batch for some in at_once(shared, [form_all] * 4) for batch in some]
    bodies = [body for batch in found for body in batch.bodies]
    assert len(bodies) == 200 == len({b.id for b in bodies})
    assert all(row.batch is not None for row in receiving.stored())


def test_a_batch_is_taken_by_one_and_taken_over_when_its_lease_runs_out(
    receiving: Receiving, shared: LakeState
) -> None:
    receiving.accept("a", "b")
    formed(receiving)
    taken = at_once(shared, [lambda ledger: batches.take(ledger, 60, dataset=receiving.dataset.id) for _ in range(4)])
    [[first]] = [some for some in taken if some]
    assert receiving.take() == [] and not is_due(receiving)
    assert batches.renew(receiving.ledger, first, -1) and is_due(receiving)
    [second] = receiving.take()
    assert (second.batch_id, second.bodies) == (first.batch_id, first.bodies) and second.lease != first.lease
    later = utc_now() + HOUR
    assert not batches.renew(receiving.ledger, first, 60)
    assert not batches.failed(receiving.ledger, first, "of the old one", later)
    assert not batches.release(receiving.ledger, first)
    assert receiving.take() == [], "the old one changed nothing"
    assert batches.release(receiving.ledger, second) and len(receiving.take()) == 1


def test_one_at_a_time_can_be_taken_so_that_others_do_the_rest(receiving: Receiving) -> None:
    receiving.accept("a", "b", "c")
    made = [formed(receiving, rows_max=10) for _ in range(3)]
    taken = [
        batches.take(receiving.ledger, 60, dataset=receiving.dataset.id, batches_max=1)[0].batch_id for _ in range(3)
    ]
    assert taken == [batch.batch_id for batch in made]


def test_a_batch_that_failed_waits_with_its_reason_and_is_tried_again(receiving: Receiving) -> None:
    receiving.accept("a")
    formed(receiving)
    [batch] = receiving.take()
    assert batches.failed(receiving.ledger, batch, "no such column", utc_now() + HOUR)
    assert receiving.take() == [] and not is_due(receiving)
    [told] = reports(receiving)
    assert [(b.reason, b.tries) for b in told.batches] == [("no such column", 1)]
    receiving.accept("b")
    with receiving.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE receive_batch SET retry_at = 1 WHERE reason IS NOT NULL")
    [again] = receiving.take()
    assert (again.failures, again.reason, again.bodies) == (1, "no such column", batch.bodies), "no body joined it"


def test_settling_twice_is_settling_once_and_needs_no_lease(receiving: Receiving) -> None:
    receiving.accept("a", "b")
    batch = formed(receiving)
    [taken] = receiving.take()
    with pytest.raises(BlockLost):
        batches.settle(receiving.ledger, taken, span(101, 120))
    in_table(receiving.ledger, batch, span(101, 120))
    batches.settle(receiving.ledger, batch, span(101, 120))
    batches.settle(receiving.ledger, taken, span(101, 120))
    with pytest.raises(BlockLost):
        batches.settle(receiving.ledger, taken, span(201, 220))
    with pytest.raises(ValueError, match="20 rows"):
        batches.settle(receiving.ledger, taken, span(101, 121))
    assert not batches.failed(receiving.ledger, taken, "late", utc_now())
    assert not batches.renew(receiving.ledger, taken, 60)
    assert receiving.take() == [] and reports(receiving) == []


def test_a_batch_that_the_ledger_forgot_is_not_settled(receiving: Receiving) -> None:
    receiving.accept("a")
    batch = formed(receiving)
    forgotten = Batch(batch.id, batch.dataset, "received-elsewhere", batch.rows, batch.bodies, 0, None)
    with pytest.raises(BlockLost):
        batches.settle(receiving.ledger, forgotten, span(1, 10))
    assert len(receiving.take()) == 1


def to_remove(receiving: Receiving) -> list[str]:
    with receiving.ledger.read() as connection:
        own = receiving.dataset.table_uuid
        return [spool for _, spool in batches.to_remove(connection) if spool.startswith(own)]


def test_files_may_go_when_their_rows_are_published_and_not_before(receiving: Receiving) -> None:
    bodies = receiving.accept(by_range(1, 10), "a key")
    receiving.accept("later")
    batch = formed(receiving, rows_max=20)
    assert to_remove(receiving) == []
    receiving.publish_formed(batch, 1)
    assert to_remove(receiving) == [b.spool for b in bodies]
    ids = [body.id for body in batch.bodies]
    assert (batches.record_removed(receiving.ledger, ids), batches.record_removed(receiving.ledger, ids)) == (2, 0)
    assert to_remove(receiving) == []


@pytest.mark.parametrize(
    "change",
    ["lo = 2, hi = 11", "rows = 11", "batch_id = 'x'", "published_at = NULL, lo = NULL, hi = NULL", "failures = 5"],
)
def test_the_store_itself_refuses_to_change_a_batch_that_is_published(receiving: Receiving, change: str) -> None:
    receiving.accept("a")
    receiving.publish(1)
    assert receiving.is_refused(f"UPDATE receive_batch SET {change} WHERE dataset_id = :dataset")
    assert receiving.is_refused("DELETE FROM receive_batch WHERE dataset_id = :dataset")


def test_the_store_itself_wants_a_number_for_each_row(receiving: Receiving) -> None:
    receiving.accept("a")
    formed(receiving)
    for change in ("lo = 1, hi = 9, published_at = 1", "lo = 1, hi = 10", "published_at = 1", "lease_token = 'x'"):
        assert receiving.is_refused(f"UPDATE receive_batch SET {change} WHERE dataset_id = :dataset"), change


def reports(receiving: Receiving) -> list[receive_report.Waiting]:
    with receiving.ledger.read() as connection:
        return [w for w in receive_report.report(connection) if w.dataset == receiving.dataset.id]


def test_status_tells_what_waits_since_when_and_why(receiving: Receiving) -> None:
    assert reports(receiving) == []
    receiving.accept("without rows", rows=0)
    assert reports(receiving) == []
    began = utc_now()
    receiving.accept("a", "b")
    first = formed(receiving)
    receiving.accept("c")
    [told] = reports(receiving)
    assert told.name == receiving.dataset.name and not told.is_dropped and told.set_aside.bodies == 0
    waiting = told.to_ingest
    assert (waiting.bodies, waiting.rows, waiting.bytes) == (3, 30, 300)
    assert waiting.oldest is not None and began <= waiting.oldest <= utc_now()
    assert [(b.batch_id, b.rows, b.tries, b.reason, b.retry_at) for b in told.batches] == [
        (first.batch_id, 20, 0, None, None)
    ]
    receiving.publish_formed(first, 1)
    [told] = reports(receiving)
    assert (told.to_ingest.bodies, told.to_ingest.rows, told.batches) == (1, 10, ()), (
        "published rows wait no more, though the files are there"
    )


def test_bodies_of_a_dataset_that_was_dropped_are_still_told_of(receiving: Receiving) -> None:
    receiving.accept("a")
    with receiving.ledger.write() as connection:
        datasets.mark_dropped(connection, receiving.dataset.id)
    [told] = reports(receiving)
    assert (told.name, told.is_dropped, told.to_ingest.rows) == (receiving.dataset.name, True, 10)
