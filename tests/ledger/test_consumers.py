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
from tests.ledger.conftest import LakeState

DROPS = ConsumerTerms(OnLag.DROP, timedelta(days=7))


def begin(
    lake: LakeState, name: str = "report", at: int | None = None, terms: ConsumerTerms = ConsumerTerms()
) -> Consumer:
    with lake.ledger.write() as connection:
        return consumers.begin(connection, lake.dataset, name, None if at is None else Seq(at), terms)


def advance(lake: LakeState, found: Consumer, to: int) -> Consumer:
    return lake.ledger.change(consumers.advance, found, Seq(to))


def watermark(lake: LakeState, name: str = "report") -> int | None:
    return lake.ledger.query(consumers.get, lake.dataset, name).watermark


def test_a_consumer_begins_where_its_first_query_did_and_moves_forward_only(lake: LakeState) -> None:
    found = begin(lake, at=5)
    assert (found.watermark, found.fence, found.reported_at) == (5, 1, None)
    assert advance(lake, found, 9).watermark == 9 == watermark(lake)
    advance(lake, found, 7)
    assert watermark(lake) == 9, "a late word of an older batch changes nothing"
    assert begin(lake, at=2).watermark == 9, "a query with an older checkpoint does not move it back"
    with pytest.raises(sa.exc.IntegrityError, match="a_consumer_never_goes_back"), lake.ledger.write() as connection:
        connection.execute(consumer.update().values(watermark=8))


def test_only_the_last_query_under_a_name_says_how_far_the_consumer_is(lake: LakeState) -> None:
    old = begin(lake)
    new = begin(lake)
    with pytest.raises(RefusedError, match="another query has begun to read as consumer report"):
        advance(lake, old, 4)
    assert watermark(lake) is None
    advance(lake, new, 4)
    assert watermark(lake) == 4


def test_a_removed_consumer_holds_nothing_and_its_query_is_told(lake: LakeState) -> None:
    found = begin(lake, at=3)
    with lake.ledger.write() as connection:
        consumers.remove(connection, lake.dataset, "report")
    with pytest.raises(NoSuchConsumer, match="was removed while this query read"):
        advance(lake, found, 4)
    with pytest.raises(NoSuchConsumer, match="has no consumer report"):
        watermark(lake)
    assert lake.ledger.query(consumers.watermarks_by_title, lake.dataset.id) == {}
    again = begin(lake, at=1)
    assert again.id != found.id and again.watermark == 1, "the name begins anew"
    with lake.ledger.read() as connection:
        events = [e.event for e in audit.latest(connection, events_max=3)]
    assert events == [Event.CONSUMER_ADDED, Event.CONSUMER_REMOVED, Event.CONSUMER_ADDED]


def test_a_name_is_one_of_its_dataset_and_is_checked(lake: LakeState) -> None:
    other = lake.add_dataset("default.other")
    begin(lake, at=3)
    with lake.ledger.write() as connection:
        consumers.begin(connection, other, "report", Seq(8), DROPS)
        for bad in (" ", "a\0b", "x" * 600):
            with pytest.raises(UsageError):
                consumers.begin(connection, other, bad, None, ConsumerTerms())
    found = [c for of in (lake.dataset.id, other.id) for c in lake.ledger.query(consumers.of_dataset, of)]
    assert [(c.watermark, c.on_lag, c.drop_after) for c in found] == [
        (3, OnLag.HOLD, None),
        (8, OnLag.DROP, timedelta(days=7)),
    ]


def test_retention_waits_for_a_consumer_at_every_site_as_for_a_sink(lake: LakeState) -> None:
    begin(lake, at=3)
    begin(lake, "slow", terms=DROPS)
    rule = RetainSettings(older_than=timedelta(days=1))
    found = lake.ledger.query(awaited.list_awaited, lake.dataset, rule)
    assert [(p.title, p.number, p.drop_after) for p in found] == [
        ("consumer report", 3, None),
        ("consumer slow", None, timedelta(days=7)),
    ]
    now = utc_now()
    with lake.ledger.write() as connection:
        assert awaited.record_holds(connection, lake.dataset, ((found[0], 4),), due=Seq(9), now=now) == []
    [held, _] = lake.ledger.query(awaited.list_awaited, lake.dataset, rule)
    assert held.held_since == now
    with lake.ledger.write() as connection:
        later = now + timedelta(hours=1)
        awaited.record_holds(connection, lake.dataset, ((held, 4),), due=Seq(9), now=later)
    [held, _] = lake.ledger.query(awaited.list_awaited, lake.dataset, rule)
    assert held.held_since == now, "since the first run that found it"
    with lake.ledger.write() as connection:
        assert awaited.record_holds(connection, lake.dataset, (), due=None, now=now) == ["consumer report"]


def test_what_was_dropped_for_a_consumer_is_on_record(lake: LakeState) -> None:
    begin(lake, "slow", terms=DROPS)
    rule = RetainSettings(older_than=timedelta(days=1))
    [found] = lake.ledger.query(awaited.list_awaited, lake.dataset, rule)
    with lake.ledger.write() as connection:
        awaited.pass_over(connection, lake.dataset, rule, ((found, 6),), Seq(9))
        [event] = audit.latest(connection, events_max=1)
    assert event.event == Event.CONSUMER_ROWS_DROPPED and event.detail["rows"] == 6
    slow = lake.ledger.query(consumers.get, lake.dataset, "slow")
    assert (slow.dropped_upto, slow.watermark) == (9, None)


def test_lag_is_counted_in_settled_rows_and_not_in_numbers(lake: LakeState) -> None:
    found = begin(lake)
    [idle] = lake.ledger.query(consumers.read_lags)
    assert (idle.dataset, idle.rows, idle.since) == ("default.events", 0, None)
    first = lake.publish(lake.reserve("a", rows=10))
    second = lake.publish(lake.reserve("b", rows=5))
    lake.reserve("open", rows=100)
    [lag] = lake.ledger.query(consumers.read_lags)
    assert (lag.rows, lag.since) == (15, first.published_at)
    advance(lake, found, int(first.head.rows.hi) + 2)
    [lag] = lake.ledger.query(consumers.read_lags)
    assert (lag.rows, lag.since) == (3, second.published_at)
    with lake.ledger.write() as connection:
        datasets.mark_dropped(connection, lake.dataset.id)
    assert lake.ledger.query(consumers.read_lags) == []


def test_the_ledger_refuses_a_consumer_that_contradicts_itself(lake: LakeState) -> None:
    made = begin(lake)
    for values in (
        {"on_lag": "drop"}, {"drop_after_seconds": 5}, {"watermark": -1}, {"fence": 0}, {"name": "other"},
        {"on_lag": "forget"},
    ):  # fmt: skip
        with pytest.raises(sa.exc.IntegrityError), lake.ledger.write() as connection:
            connection.execute(consumer.update().values(**values))
    with pytest.raises(sa.exc.IntegrityError, match="a_consumer_stays"), lake.ledger.write() as connection:
        connection.execute(sa.delete(consumer))
    assert made == lake.ledger.query(consumers.get, lake.dataset, "report")
