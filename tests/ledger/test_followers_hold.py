"""What followers hold back besides retention."""

from __future__ import annotations

from datetime import timedelta

import pytest

from strandline.core.errors import WatermarkMoved
from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import Asked
from strandline.core.settings.maintain import RetainSettings
from strandline.core.sites.replication import OnLag
from strandline.core.types import SEQ_MAX, Seq, SeqRange
from strandline.deliver.sink_records import SinkInquiry
from strandline.ledger import audit
from strandline.ledger.ingest import purge_items
from strandline.ledger.replicate import followers
from strandline.maintain import awaited
from strandline.reconcile.ledger_context import LedgerContextLoader
from tests.ledger.conftest import LakeState
from tests.ledger.test_followers import add, tell


def test_a_restored_ledger_brings_back_no_block_of_a_dataset_that_is_followed(lake: LakeState) -> None:
    """Nobody can ask a follower how far it is. What is not rolled forward was never acknowledged."""
    inquiry = SinkInquiry(None)  # type: ignore[arg-type]  # no sink is asked
    assert lake.ledger.query(inquiry.highest_delivered, lake.dataset) is None
    made = add(lake)
    assert lake.ledger.query(inquiry.highest_delivered, lake.dataset) == SEQ_MAX
    lake.ledger.change(followers.remove, made)
    assert lake.ledger.query(inquiry.highest_delivered, lake.dataset) is None


def test_the_reconciler_counts_a_follower_among_those_that_must_have_the_rows(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 50))
    made = add(lake)
    tell(lake, made, 40)
    loader = LedgerContextLoader(lake.config, lake.ledger, lake.witness)
    assert loader.ledger_context(Asked(act=False)).seals[lake.dataset.name].holds == {"follower east": 40}


RULE = RetainSettings(older_than=timedelta(days=30))


def waits_at(lake: LakeState) -> dict[str, int]:
    with lake.ledger.read() as connection:
        return {p.title: p.waits_at for p in awaited.list_awaited(connection, lake.dataset, RULE)}


def purge(lake: LakeState, *rows: tuple[int, int]) -> int:
    ranges = [SeqRange(Seq(lo), Seq(hi)) for lo, hi in rows]
    with lake.ledger.write() as connection:
        return int(purge_items.take_number(connection, lake.witness, lake.dataset.id, ranges) or 0)


def test_retention_keeps_rows_from_the_first_that_a_follower_has_yet_to_purge(lake: LakeState) -> None:
    """Where purged rows are too many to be named, it deletes what the leader lacks between them."""
    lake.publish(lake.reserve("a", 50))
    east, west = add(lake), add(lake, "west")
    tell(lake, east, 50)
    tell(lake, west, 15)
    assert waits_at(lake) == {"follower east": 50, "follower west": 15}
    first, second = purge(lake, (20, 22), (31, 40)), purge(lake, (12, 12))
    assert waits_at(lake) == {"follower east": 11, "follower west": 11}
    tell(lake, east, first)
    assert waits_at(lake) == {"follower east": 11, "follower west": 11}
    tell(lake, east, second)
    assert waits_at(lake) == {"follower east": second, "follower west": 11}


def test_retention_keeps_rows_from_the_first_of_a_purge_that_has_no_number_yet(lake: LakeState) -> None:
    """Its run works on it, or died; followers hear of it later."""
    lake.publish(lake.reserve("a", 50))
    tell(lake, add(lake), 50)

    def record(event: Event, dataset: str, **detail: object) -> None:
        with lake.ledger.write() as connection:
            audit.record(connection, event, dataset=dataset, **detail)

    record(Event.PURGED, "default.other", first=1, last=2, sinks=[])
    assert waits_at(lake) == {"follower east": 50}
    record(Event.PURGED, lake.dataset.name, first=7, last=9, sinks=[])
    record(Event.PURGED, lake.dataset.name, first=None, last=None, sinks=[])
    assert waits_at(lake) == {"follower east": 6}
    record(Event.PURGE_SETTLED, lake.dataset.name, late=[])
    assert waits_at(lake) == {"follower east": 50}


def test_a_follower_whose_purge_retention_does_not_await_loses_none_of_the_rows_that_it_has(lake: LakeState) -> None:
    lake.publish(lake.reserve("a", 50))
    tell(lake, add(lake, on_lag=OnLag.DROP, drop_after=timedelta(days=7)), 50)
    purge(lake, (20, 22))
    with lake.ledger.write() as connection:
        [found] = awaited.list_awaited(connection, lake.dataset, RULE)
        with pytest.raises(WatermarkMoved):
            awaited.pass_over(connection, lake.dataset, RULE, (), Seq(40))
        awaited.pass_over(connection, lake.dataset, RULE, ((found, 0),), Seq(40))
        [progress] = followers.list_progress(connection, lake.dataset)
        assert progress.dropped_upto is None and audit.newest(connection, Event.FOLLOWER_ROWS_DROPPED) is None
        awaited.pass_over(connection, lake.dataset, RULE, ((found, 3),), Seq(52))
        [progress] = followers.list_progress(connection, lake.dataset)
        assert progress.dropped_upto == 52
