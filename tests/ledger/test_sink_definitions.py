"""What comes along of a leader's sinks, and what a site that takes over makes of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from strandline.cli.render.promotion import what_it_left
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import LaneDefinition
from strandline.core.types import Seq
from strandline.ledger import audit
from strandline.ledger.deliver import intents, lanes, quarantine, sinks
from strandline.ledger.deliver.quarantine import NOT_DELIVERED, QuarantineState
from strandline.ledger.replicate import leader_sinks, sink_definitions
from strandline.ledger.replicate.promotions import Led
from strandline.ledger.replicate.sink_definitions import (
    SinksTakenOver,
    definitions_version,
    read_definitions,
    take_over,
    take_over_sinks,
)
from strandline.replicate.follow.answer_document import sink_definition
from strandline.replicate.follow.leader_sinks import LeaderSinks
from strandline.replicate.take_over.promote import Promoted
from strandline.status.documents import promotion_documents
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import new_delivery, one_chunk
from tests.ledger.test_quarantine import set_aside


def test_a_site_that_takes_over_goes_on_where_the_leader_was(lake: LakeState) -> None:
    """Also one that led before: what it planned then, and never finished, was done by others or is planned anew."""
    made = new_delivery(lake, partitioned=True)
    made.settle(1, 30)
    made.deliver(10, one_chunk("a", None, 10), one_chunk("b", None, 10))
    made.plan(20, one_chunk("a", 10, 20))  # under way when the leader was lost
    with lake.ledger.write() as connection:
        sinks.pause(connection, made.sink.id)
    [told] = lake.ledger.query(read_definitions)
    assert (told.planned, told.paused) == (20, True)
    assert told.lanes == (LaneDefinition("a", Seq(10), None), LaneDefinition("b", Seq(20), None))
    assert sink_definition(json.loads(json.dumps(asdict(told)))) == told, "as it comes over a network"

    kept = LeaderSinks(lake.ledger)
    assert kept.version() is None
    kept.store((told,), "v1")
    assert kept.version() == "v1"
    with lake.ledger.write() as connection:
        assert take_over_sinks(connection).names == (made.sink.name,)
    record = lake.ledger.query(sinks.get, made.sink.name)
    assert record.id != made.sink.id, "nobody finishes what the record before had begun"
    assert (record.instance, record.generation, record.planned) == (made.sink.instance, 1, 20)
    assert lake.ledger.query(intents.open_of, record) == []
    here = lake.ledger.query(lanes.list_lanes, record, lake=LAKE, dataset=told.dataset)
    assert [(lane.partition, lane.mark) for lane in here] == [("a", 10), ("b", 20)]
    assert lake.ledger.query(sinks.due) == [], "a paused sink stays paused"
    with lake.ledger.write() as connection:
        sinks.resume(connection, record.id)
    [work] = lake.ledger.query(sinks.due)
    assert work.behind, "rows 11 to 20 of the lane whose intent was left are planned again"


def test_a_sink_with_too_many_lanes_begins_at_its_beginning(lake: LakeState, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_delivery(lake, partitioned=True)
    made.settle(1, 30)
    made.deliver(10, one_chunk("a", None, 10), one_chunk("b", None, 10))
    monkeypatch.setattr(sink_definitions, "LANES_MAX", 1)
    [told] = lake.ledger.query(read_definitions)
    assert (told.planned, told.lanes) == (None, ())


def test_a_sink_of_a_dataset_that_is_not_here_is_named(lake: LakeState) -> None:
    made = new_delivery(lake, partitioned=False)
    [told] = lake.ledger.query(read_definitions)
    elsewhere = replace(told, dataset="another", name="other")
    with lake.ledger.write() as connection:
        assert take_over(connection, LAKE, [told, elsewhere]).left == ("other",)
    assert lake.ledger.query(sinks.get, made.sink.name).instance == made.sink.instance


def test_what_a_limited_token_must_not_see_does_not_come_along(lake: LakeState) -> None:
    made = new_delivery(lake, partitioned=False)
    other = new_delivery(lake, partitioned=False)
    found = lake.ledger.query(lambda c: read_definitions(c, only=[made.dataset.name]))
    assert [d.name for d in found] == [made.sink.name] != [other.sink.name]


def test_nothing_was_told(lake: LakeState) -> None:
    assert lake.ledger.query(leader_sinks.read) is None
    with lake.ledger.write() as connection:
        assert take_over_sinks(connection).names == ()


def test_a_site_that_was_told_nothing_since_it_led_goes_on_with_its_own_sinks_and_asks_each_where_it_is(
    lake: LakeState,
) -> None:
    """Nothing told does not say that there are none: the leader between may have been lost before it was asked."""
    made = new_delivery(lake, partitioned=False)
    made.settle(1, 30)
    made.deliver(10, one_chunk("", None, 10))
    made.plan(20, one_chunk("", 10, 20))  # under way when the site was replaced
    with lake.ledger.write() as connection:
        taken = take_over_sinks(connection)
    assert (taken.names, taken.removed) == ((made.sink.name,), ())
    record = lake.ledger.query(sinks.get, made.sink.name)
    assert (record.instance, record.generation) == (made.sink.instance, 1)
    assert lake.ledger.query(intents.open_of, record) == []
    assert [lane.mark for lane in lake.ledger.query(lanes.unchecked, record)] == [10], "the sink is asked first"


def test_a_sink_that_the_leader_between_had_no_more_is_removed_and_named(lake: LakeState) -> None:
    made = new_delivery(lake, partitioned=False)
    LeaderSinks(lake.ledger).store((), "v1")
    with lake.ledger.write() as connection:
        taken = take_over_sinks(connection)
    assert (taken.names, taken.removed) == ((), (made.sink.name,))
    found = Promoted(18, Led(18, (), (), taken))
    assert made.sink.name in str(next(what_it_left(found)))
    assert promotion_documents.promoted(found)["sinks_removed"] == [made.sink.name]


def test_the_version_is_another_one_whenever_a_sink_was_added_changed_or_removed(lake: LakeState) -> None:
    """A follower is told of it with its next poll: the leader may be lost right after."""

    def version() -> str:
        return lake.ledger.query(definitions_version)

    made = new_delivery(lake, partitioned=False)
    made.settle(1, 30)
    seen = [version()]
    made.deliver(10, one_chunk("", None, 10))
    assert version() == seen[0], "where sinks are comes with new rows, and now and then"
    for change in (sinks.pause, sinks.resume, sinks.remove):
        with lake.ledger.write() as connection:
            change(connection, made.sink.id)
        seen.append(version())
    other = new_delivery(lake, partitioned=False)
    seen.append(version())
    assert seen[0] == seen[2] and len(set(seen)) == 4, "paused, and added; removed is as before there was one"
    assert lake.ledger.query(lambda c: definitions_version(c, only=[])) == seen[3]
    assert lake.ledger.query(lambda c: definitions_version(c, only=[other.dataset.name])) == seen[4]


def test_rows_that_wait_in_quarantine_at_the_old_leader_are_counted_by_sink(lake: LakeState) -> None:
    """They do not come along, so `promote` names them."""
    made, whole = new_delivery(lake), new_delivery(lake)
    kept, discarded = set_aside(made, 3, 7)[:2]
    set_aside(made_again := new_delivery(lake), 5)
    assert quarantine.discard(lake.ledger, discarded.id) and kept.state is QuarantineState.HELD
    told = lake.ledger.query(read_definitions)
    assert {d.name: d.quarantined for d in told} == {made.sink.name: 1, made_again.sink.name: 1, whole.sink.name: 0}
    assert [sink_definition(json.loads(json.dumps(asdict(one)))) for one in told] == list(told)
    LeaderSinks(lake.ledger).store(told, "v1")
    with lake.ledger.write() as connection:
        taken = take_over_sinks(connection)
        named = {e.detail["sink"]: e.detail["quarantined_before"] for e in audit.latest(connection, events=_ADDED)}
    assert dict(taken.quarantined) == {made.sink.name: 1, made_again.sink.name: 1}
    assert named == {made.sink.name: 1, made_again.sink.name: 1, whole.sink.name: 0}
    found = Promoted(18, Led(18, (), (), SinksTakenOver(quarantined=(("partner", 3),))))
    assert "3 rows that sink partner refused stay in quarantine at the old leader" in str(next(what_it_left(found)))
    assert promotion_documents.promoted(found)["quarantined_at_the_old_leader"] == {"partner": 3}


_ADDED = (Event.SINK_ADDED,)


def test_rows_that_a_sink_refused_when_the_site_led_before_wait_again_when_it_leads_again(lake: LakeState) -> None:
    """The leader between has delivered up to 100, and has not sent them: only this site has their content."""
    made, reset = new_delivery(lake), new_delivery(lake)
    held, given_up, sent = set_aside(made, 3, 7, 9)
    assert quarantine.discard(lake.ledger, given_up.id) and quarantine.start_replay(lake.ledger, sent.id) == 1
    set_aside(reset, 3)
    between = {d.name: d for d in lake.ledger.query(read_definitions)}
    moved = replace(between[made.sink.name], planned=Seq(100), lanes=(LaneDefinition("k=a", Seq(100), None),))
    anew = replace(between[reset.sink.name], generation=2, lanes=())
    LeaderSinks(lake.ledger).store((moved, anew), "v1")
    for _ in range(2):  # it may lead, follow and lead again
        with lake.ledger.write() as connection:
            take_over_sinks(connection)
        record = lake.ledger.query(sinks.get, made.sink.name)
        with lake.ledger.read() as connection:
            found = quarantine.list_quarantined(connection, record, NOT_DELIVERED)
        assert [(q.seq, q.reason, q.object, q.partition, q.state) for q in found] == [
            (q.seq, q.reason, q.object, "k=a", QuarantineState.HELD) for q in (held, sent)
        ]
        assert [lane.mark for lane in lake.ledger.query(lanes.unchecked, record)] == [100]
    with lake.ledger.read() as connection:
        waiting = quarantine.count_waiting(connection)
        assert waiting[record.id] == 2
        assert lake.ledger.query(sinks.get, reset.sink.name).id not in waiting, "a new generation gets every row anew"
