"""Consumers: what the ledger knows of readers that have a name, on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from strandline.core.errors import NoSuchConsumer, RefusedError, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.settings.maintain import RetainSettings
from strandline.core.sites.replication import OnLag
from strandline.core.types import Seq
from strandline.ledger import audit
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import datasets
from strandline.ledger.read import consumers
from strandline.ledger.read.consumers import Consumer, ConsumerTerms
from strandline.ledger.schema.consumers import consumer
from strandline.maintain import awaited
from tests.ledger.conftest import Bench

DROPS = ConsumerTerms(OnLag.DROP, timedelta(days=7))


def begin(
    bench: Bench, name: str = "report", at: int | None = None, terms: ConsumerTerms = ConsumerTerms()
) -> Consumer:
    with bench.ledger.write() as connection:
        return consumers.begin(connection, bench.dataset, name, None if at is None else Seq(at), terms)


def advance(bench: Bench, found: Consumer, to: int) -> Consumer:
    return bench.ledger.change(consumers.advance, found, Seq(to))


def watermark(bench: Bench, name: str = "report") -> int | None:
    return bench.ledger.query(consumers.get, bench.dataset, name).watermark


def test_a_consumer_begins_where_its_first_query_did_and_moves_forward_only(bench: Bench) -> None:
    found = begin(bench, at=5)
    assert (found.watermark, found.fence, found.reported_at) == (5, 1, None)
    assert advance(bench, found, 9).watermark == 9 == watermark(bench)
    advance(bench, found, 7)
    assert watermark(bench) == 9, "a late word of an older batch changes nothing"
    assert begin(bench, at=2).watermark == 9, "a query with an older checkpoint does not move it back"
    with pytest.raises(sa.exc.IntegrityError, match="a_consumer_never_goes_back"), bench.ledger.write() as connection:
        connection.execute(consumer.update().values(watermark=8))


def test_only_the_last_query_under_a_name_says_how_far_the_consumer_is(bench: Bench) -> None:
    old = begin(bench)
    new = begin(bench)
    with pytest.raises(RefusedError, match="another query has begun to read as consumer report"):
        advance(bench, old, 4)
    assert watermark(bench) is None
    advance(bench, new, 4)
    assert watermark(bench) == 4


def test_a_removed_consumer_holds_nothing_and_its_query_is_told(bench: Bench) -> None:
    found = begin(bench, at=3)
    with bench.ledger.write() as connection:
        consumers.remove(connection, bench.dataset, "report")
    with pytest.raises(NoSuchConsumer, match="was removed while this query read"):
        advance(bench, found, 4)
    with pytest.raises(NoSuchConsumer, match="has no consumer report"):
        watermark(bench)
    assert bench.ledger.query(consumers.watermarks_by_title, bench.dataset.id) == {}
    again = begin(bench, at=1)
    assert again.id != found.id and again.watermark == 1, "the name begins anew"
    with bench.ledger.read() as connection:
        events = [e.event for e in audit.latest(connection, events_max=3)]
    assert events == [Event.CONSUMER_ADDED, Event.CONSUMER_REMOVED, Event.CONSUMER_ADDED]


def test_a_name_is_one_of_its_dataset_and_is_checked(bench: Bench) -> None:
    other = bench.add_dataset("default.other")
    begin(bench, at=3)
    with bench.ledger.write() as connection:
        consumers.begin(connection, other, "report", Seq(8), DROPS)
        for bad in (" ", "a\0b", "x" * 600):
            with pytest.raises(UsageError):
                consumers.begin(connection, other, bad, None, ConsumerTerms())
    found = [c for of in (bench.dataset.id, other.id) for c in bench.ledger.query(consumers.of_dataset, of)]
    assert [(c.watermark, c.on_lag, c.drop_after) for c in found] == [
        (3, OnLag.HOLD, None),
        (8, OnLag.DROP, timedelta(days=7)),
    ]


def test_retention_waits_for_a_consumer_at_every_site_as_for_a_sink(bench: Bench) -> None:
    begin(bench, at=3)
    begin(bench, "slow", terms=DROPS)
    rule = RetainSettings(older_than=timedelta(days=1))
    found = bench.ledger.query(awaited.list_awaited, bench.dataset, rule)
    assert [(p.title, p.number, p.drop_after) for p in found] == [
        ("consumer report", 3, None),
        ("consumer slow", None, timedelta(days=7)),
    ]
    now = utc_now()
    with bench.ledger.write() as connection:
        assert awaited.record_holds(connection, bench.dataset, ((found[0], 4),), due=Seq(9), now=now) == []
    [held, _] = bench.ledger.query(awaited.list_awaited, bench.dataset, rule)
    assert held.held_since == now
    with bench.ledger.write() as connection:
        later = now + timedelta(hours=1)
        awaited.record_holds(connection, bench.dataset, ((held, 4),), due=Seq(9), now=later)
    [held, _] = bench.ledger.query(awaited.list_awaited, bench.dataset, rule)
    assert held.held_since == now, "since the first run that found it"
    with bench.ledger.write() as connection:
        assert awaited.record_holds(connection, bench.dataset, (), due=None, now=now) == ["consumer report"]


def test_what_was_dropped_for_a_consumer_is_on_record(bench: Bench) -> None:
    begin(bench, "slow", terms=DROPS)
    rule = RetainSettings(older_than=timedelta(days=1))
    [found] = bench.ledger.query(awaited.list_awaited, bench.dataset, rule)
    with bench.ledger.write() as connection:
        awaited.pass_over(connection, bench.dataset, rule, ((found, 6),), Seq(9))
        [event] = audit.latest(connection, events_max=1)
    assert event.event == Event.CONSUMER_ROWS_DROPPED and event.detail["rows"] == 6
    slow = bench.ledger.query(consumers.get, bench.dataset, "slow")
    assert (slow.dropped_upto, slow.watermark) == (9, None)


def test_lag_is_counted_in_settled_rows_and_not_in_numbers(bench: Bench) -> None:
    found = begin(bench)
    [idle] = bench.ledger.query(consumers.read_lags)
    assert (idle.dataset, idle.rows, idle.since) == ("default.events", 0, None)
    first = bench.publish(bench.reserve("a", rows=10))
    second = bench.publish(bench.reserve("b", rows=5))
    bench.reserve("open", rows=100)
    [lag] = bench.ledger.query(consumers.read_lags)
    assert (lag.rows, lag.since) == (15, first.published_at)
    advance(bench, found, int(first.head.rows.hi) + 2)
    [lag] = bench.ledger.query(consumers.read_lags)
    assert (lag.rows, lag.since) == (3, second.published_at)
    with bench.ledger.write() as connection:
        datasets.mark_dropped(connection, bench.dataset.id)
    assert bench.ledger.query(consumers.read_lags) == []


def test_the_ledger_refuses_a_consumer_that_contradicts_itself(bench: Bench) -> None:
    made = begin(bench)
    for values in (
        {"on_lag": "drop"}, {"drop_after_seconds": 5}, {"watermark": -1}, {"fence": 0}, {"name": "other"},
        {"on_lag": "forget"},
    ):  # fmt: skip
        with pytest.raises(sa.exc.IntegrityError), bench.ledger.write() as connection:
            connection.execute(consumer.update().values(**values))
    with pytest.raises(sa.exc.IntegrityError, match="a_consumer_stays"), bench.ledger.write() as connection:
        connection.execute(sa.delete(consumer))
    assert made == bench.ledger.query(consumers.get, bench.dataset, "report")
