"""How sinks fare, as `status` tells it: what waits, since when, whether it becomes more, and what is not known."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import event

from strandline.core.delivery_types import LanePlan
from strandline.core.types import Seq
from strandline.ledger.deliver import delivery_report, sinks
from strandline.ledger.deliver.delivery_report import Pace
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import datasets
from strandline.status import sinks as sink_status
from strandline.status.documents import lake_documents
from strandline.status.sinks import SinkStatus
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, empty, landed, new_delivery, one_chunk, planned


def look(delivery: Delivery) -> dict[str | None, SinkStatus]:
    return {s.partition: s for s in sink_status.load_sinks(delivery.ledger, LAKE, delivery.sink.name)}


def test_a_sink_without_partitions_counts_every_row_that_it_lacks(shared: LakeState) -> None:
    delivery = new_delivery(shared, partitioned=False)
    [fresh] = look(delivery).values()
    assert (fresh.watermark, fresh.lag_rows, fresh.unplanned_rows, fresh.exported) == (None, 100, 100, 0)
    assert fresh.lag_seconds is not None and 0 <= fresh.lag_seconds < 60
    assert (fresh.trend, fresh.last_batch, fresh.open_intent) == ("growing", None, None)
    stored = delivery.plan(100, LanePlan("", None, Seq(100), (planned(1, 40), planned(41, 70), planned(71, 100))))
    assert stored is not None
    first, second, third = stored[0].chunks
    assert delivery.acknowledge(landed(first, 35, withheld=5), empty(second, withheld=30))
    [half] = look(delivery).values()
    assert lake_documents.sink_status(half)["open_intent"] == {"from": 1, "to": 100, "chunks": 3, "landed": 2}
    assert (half.watermark, half.lag_rows, half.unplanned_rows) == (None, 30, 0)
    assert delivery.acknowledge(landed(third)) and delivery.close(stored)
    [done] = look(delivery).values()
    assert (done.watermark, done.lag_rows, done.lag_seconds, done.trend) == (100, 0, 0.0, "steady")
    assert (done.exported, done.withheld, done.open_intent) == (65, 35, None)
    batch = lake_documents.sink_status(done)["last_batch"]
    assert (batch["from"], batch["to"], batch["rows"]) == (1, 100, 65)


def test_a_password_in_what_was_promised_is_not_shown(shared: LakeState) -> None:
    """Our own kinds of sinks refuse one; kinds that packages bring may not."""
    delivery = new_delivery(shared, partitioned=False)
    assert delivery.plan(100, one_chunk("", None, 100), dsn="postgresql://u:hunter22hunter22@h/d")
    told = lake_documents.sink_in_full(delivery.sink, list(look(delivery).values()), delivery.open())
    assert [i["options"] for i in told["open_intents"]] == [{"dsn": "postgresql://u:***@h/d"}]


def test_the_last_batch_is_the_last_that_brought_rows(shared: LakeState) -> None:
    delivery = new_delivery(shared, partitioned=False)
    delivery.deliver(60, one_chunk("", None, 60))
    stored = delivery.plan(100, one_chunk("", 60, 100))
    assert stored is not None
    assert delivery.acknowledge(empty(stored[0].chunks[0], withheld=40)) and delivery.close(stored)
    [found] = look(delivery).values()
    assert found.last_batch is not None
    assert (found.last_batch.rows.lo, found.last_batch.rows.hi, found.last_batch.count) == (1, 60, 60)
    assert (found.watermark, found.withheld) == (100, 40)


def test_rows_that_are_not_planned_yet_make_the_lag_of_a_partition_unknown_and_not_zero(shared: LakeState) -> None:
    delivery = new_delivery(shared)
    assert [(p, s.lag_rows) for p, s in look(delivery).items()] == [(None, 100)], "no partition was seen yet"
    stored = delivery.plan(100, one_chunk("k=a", None, 100), one_chunk("k=b", None, 100))
    assert stored is not None
    assert delivery.acknowledge(landed(stored[0].chunks[0])) and delivery.close(stored[:1])
    found = look(delivery)
    assert (found["k=a"].lag_rows, found["k=a"].watermark) == (0, 100)
    assert (found["k=b"].lag_rows, found["k=b"].watermark) == (100, None)
    assert {s.sink_lag_rows for s in found.values()} == {100}
    delivery.settle(101, 150)
    found = look(delivery)
    assert {s.unplanned_rows for s in found.values()} == {50}
    assert [s.lag_rows for s in found.values()] == [None, None]
    assert found["k=a"].lag_seconds is None
    assert found["k=b"].lag_seconds is not None, "its promised rows wait for certain"
    assert {s.sink_lag_rows for s in found.values()} == {150}


def test_a_partition_below_the_plan_without_an_intent_has_an_unknown_lag(shared: LakeState) -> None:
    delivery = new_delivery(shared)
    first = delivery.plan(50, one_chunk("k=a", None, 50))
    assert first is not None
    delivery.plan(100, one_chunk("k=b", 50, 100))
    assert delivery.acknowledge(landed(first[0].chunks[0])) and delivery.close(first)
    found = look(delivery)
    assert (found["k=a"].watermark, found["k=a"].lag_rows) == (50, None)
    assert found["k=b"].lag_rows == 50
    assert found["k=a"].sink_lag_rows is None


def test_the_pace_is_what_came_and_what_went_since_a_moment_and_not_before(shared: LakeState) -> None:
    delivery = new_delivery(shared, partitioned=False)
    began = utc_now() - timedelta(minutes=1)

    def pace(since: datetime) -> tuple[int, int]:
        with delivery.ledger.read() as connection:
            found = delivery_report.paces(connection, since, delivery.sink.id)[delivery.sink.id]
        return found.published, found.settled

    delivery.deliver(40, one_chunk("", None, 40))
    assert pace(began) == (100, 40)
    later = utc_now()
    assert pace(later) == (0, 0)
    stored = delivery.plan(60, one_chunk("", 40, 60))
    assert stored is not None and delivery.acknowledge(landed(stored[0].chunks[0], 15, withheld=5))
    assert pace(later) == (0, 20), "withheld rows are dealt with, too, and the intent need not be closed"
    delivery.settle(101, 200)
    assert pace(later) == (100, 20)
    assert delivery.close(stored)
    assert pace(later) == (100, 20)
    assert pace(began) == (200, 60)


@pytest.mark.parametrize(
    ("published", "settled", "lag_rows", "said"),
    [
        (9, 5, 100, "growing"),
        (5, 9, 100, "shrinking"),
        (5, 5, 100, "steady"),
        (5, 9, 0, "steady"),
        (5, 0, None, "growing"),
    ],
)
def test_the_trend_is_steady_where_nothing_is_behind(
    published: int, settled: int, lag_rows: int | None, said: str
) -> None:
    assert sink_status.trend(Pace(published, settled), lag_rows) == said


def test_a_record_that_disagrees_with_itself_is_shown_as_unknown(shared: LakeState) -> None:
    delivery = new_delivery(shared)
    delivery.deliver(100, one_chunk("k=a", None, 100))
    delivery.damage("UPDATE lane SET continuation = 'nonsense', version = version + 1 WHERE sink_id = :sink")
    [found] = look(delivery).values()
    assert (found.watermark, found.lag_rows, found.lag_seconds, found.exported, found.withheld) == (None,) * 5
    assert "cannot be used" in (found.reason or "") and found.trend == "unknown"


def test_a_sink_that_failed_waits_and_one_whose_dataset_is_gone_says_so(shared: LakeState) -> None:
    delivery = new_delivery(shared, partitioned=False)
    later = utc_now() + timedelta(minutes=1)
    with delivery.ledger.write() as connection:
        sinks.failed(connection, delivery.sink.id, "no answer", later)
    [found] = look(delivery).values()
    assert (found.state, found.reason, found.retries, found.retry_at) == ("waiting", "no answer", 1, later)
    with delivery.ledger.write() as connection:
        sinks.pause(connection, delivery.sink.id)
        datasets.mark_dropped(connection, delivery.dataset.id)
    [found] = look(delivery).values()
    assert (found.state, found.dataset) == ("paused", delivery.dataset.name)
    assert "dropped" in (found.reason or "")


def test_a_new_generation_begins_with_nothing(shared: LakeState) -> None:
    delivery = new_delivery(shared, partitioned=False)
    delivery.deliver(100, one_chunk("", None, 100))
    delivery.reset()
    [found] = look(delivery).values()
    assert (found.generation, found.watermark, found.lag_rows, found.exported, found.last_batch) == (
        2,
        None,
        100,
        0,
        None,
    )


def test_a_thousand_partitions_cost_a_few_statements(sqlite_lake: LakeState) -> None:
    delivery = new_delivery(sqlite_lake)
    delivery.deliver(100, *(one_chunk(f"k={n}", None, 100) for n in range(1_500)))
    asked: list[str] = []
    event.listen(delivery.ledger.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    assert len(look(delivery)) == 1_500
    assert sum(text.startswith(("SELECT", "WITH")) for text in asked) < 20
