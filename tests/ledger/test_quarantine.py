"""Rows that a sink refused: each is set aside once, together with its chunk, and goes its way and no other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from strandline.core.delivery_types import ChunkState, Intent, LanePlan
from strandline.core.errors import WatermarkMoved
from strandline.core.types import Seq
from strandline.ledger.deliver import quarantine, sinks
from strandline.ledger.deliver.quarantine import (
    NOT_DELIVERED,
    Quarantined,
    QuarantinedId,
    QuarantineState,
    StoredRefusedRow,
)
from strandline.status import sinks as sink_status
from strandline.status.documents import lake_documents
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, landed, one_chunk, planned
from tests.ledger.receiving import at_once


def single_rows(delivery: Delivery, *rows: int, partition: str = "k=a") -> Intent:
    """An intent in which these rows stand alone."""
    cuts = sorted({0, 100, *rows, *(n - 1 for n in rows)})
    chunks = tuple(planned(a + 1, b) for a, b in itertools.pairwise(cuts))
    stored = delivery.plan(100, LanePlan(partition, None, Seq(100), chunks))
    assert stored is not None
    return stored[0]


def refused(intent: Intent, *rows: int, reason: str = "422: not a number") -> list[tuple[Any, StoredRefusedRow]]:
    return [
        (
            c.id,
            StoredRefusedRow(
                intent.lane, c.rows.lo, reason, f"quarantine/{intent.lane}/{c.rows.lo}.arrow", 99, {"a": "b"}, "jsonl"
            ),
        )
        for c in intent.chunks
        if c.rows.lo == c.rows.hi and c.rows.lo in rows
    ]


def set_aside(delivery: Delivery, *rows: int, partition: str = "k=a") -> list[Quarantined]:
    intent = single_rows(delivery, *rows, partition=partition)
    assert quarantine.quarantine_rows(delivery.ledger, delivery.lease, refused(intent, *rows))
    return look(delivery)


def look(delivery: Delivery, states: tuple[QuarantineState, ...] | None = None) -> list[Quarantined]:
    with delivery.ledger.read() as connection:
        return quarantine.list_quarantined(connection, delivery.sink, states)


def counted(delivery: Delivery) -> int:
    with delivery.ledger.read() as connection:
        found = quarantine.list_quarantined(connection, delivery.sink, quarantine.NOT_DELIVERED)
        return sum(q.generation == delivery.sink.generation for q in found)


def test_a_row_is_set_aside_together_with_its_chunk_and_the_lane_goes_on(delivery: Delivery) -> None:
    intent = single_rows(delivery, 7, 50)
    rows = refused(intent, 7, 50)
    assert quarantine.quarantine_rows(delivery.ledger, delivery.lease, rows)
    assert quarantine.quarantine_rows(delivery.ledger, delivery.lease, rows), (
        "the answer to a commit may have been lost"
    )
    first, second = look(delivery)
    assert (first.seq, first.reason, first.size, first.form) == (7, "422: not a number", 99, "jsonl")
    assert (first.lane, first.partition, first.generation, first.options) == (intent.lane, "k=a", 1, {"a": "b"})
    assert (first.state, first.replay_number, second.seq) == (QuarantineState.HELD, None, 50)
    [now] = delivery.open()
    assert [c.rows.lo for c in now.chunks if c.state is ChunkState.EMPTY] == [7, 50]
    assert delivery.acknowledge(*(landed(c) for c in now.chunks if c.state is ChunkState.PLANNED))
    assert delivery.close([now]) and delivery.marks() == {"k=a": 100}
    lane = delivery.lanes()["k=a"]
    assert (lane.exported, lane.withheld) == (98, 0), "a quarantined row is neither delivered nor withheld"
    assert counted(delivery) == 2
    with delivery.ledger.read() as connection:
        assert quarantine.list_quarantined(connection, delivery.sink) == [first, second]
        assert quarantine.get(connection, first.id) == first
        assert quarantine.get(connection, QuarantinedId(10**9)) is None


def test_nothing_is_set_aside_behind_a_lost_lease_or_where_the_chunk_has_landed(delivery: Delivery) -> None:
    intent = single_rows(delivery, 7, 8)
    seven = next(c for c in intent.chunks if c.rows.lo == 7)
    assert delivery.acknowledge(landed(seven))
    with pytest.raises(WatermarkMoved):
        quarantine.quarantine_rows(delivery.ledger, delivery.lease, refused(intent, 7, 8))
    lost = delivery.lease
    delivery.lease = delivery.lose()
    assert not quarantine.quarantine_rows(delivery.ledger, lost, refused(intent, 8))
    assert look(delivery) == []
    assert sum(c.state is ChunkState.PLANNED for c in delivery.open()[0].chunks) == len(intent.chunks) - 1


def test_replays_have_numbers_of_their_own_and_one_that_began_keeps_its_number(delivery: Delivery) -> None:
    first, second, third = set_aside(delivery, 7, 8, 50)
    ledger = delivery.ledger
    assert (quarantine.start_replay(ledger, second.id), quarantine.start_replay(ledger, second.id)) == (1, 1)
    assert quarantine.start_replay(ledger, first.id) == 2
    assert (
        quarantine.refused_again(ledger, second.id, "422: still not")
        and quarantine.start_replay(ledger, second.id) == 1
    )
    assert quarantine.start_replay(ledger, third.id) == 3
    assert quarantine.replayed(ledger, third.id) and quarantine.start_replay(ledger, third.id) is None
    assert quarantine.start_replay(ledger, QuarantinedId(10**9)) is None
    assert [(q.seq, q.state.value, q.replay_number) for q in look(delivery)] == [
        (7, "replaying", 2),
        (8, "replaying", 1),
        (50, "replayed", 3),
    ]


def test_replays_that_begin_at_once_get_different_numbers(delivery: Delivery, shared: LakeState) -> None:
    rows = set_aside(delivery, 2, 4, 6, 8)
    begin = [lambda ledger, id=q.id: quarantine.start_replay(ledger, id) for q in rows]  # type: ignore[misc]
    assert sorted(at_once(shared, begin)) == [1, 2, 3, 4]


def test_a_row_that_may_have_landed_cannot_be_discarded(delivery: Delivery) -> None:
    first, second = set_aside(delivery, 7, 8)
    ledger = delivery.ledger
    assert not quarantine.replayed(ledger, first.id), "it was not even sent"
    assert quarantine.start_replay(ledger, first.id) == 1
    assert not quarantine.discard(ledger, first.id)
    assert counted(delivery) == 2
    assert quarantine.replayed(ledger, first.id) and quarantine.replayed(ledger, first.id)
    assert not quarantine.discard(ledger, first.id)
    assert quarantine.discard(ledger, second.id) and quarantine.discard(ledger, second.id)
    assert quarantine.start_replay(ledger, second.id) is None
    assert (look(delivery, NOT_DELIVERED), counted(delivery)) == ([], 0)
    assert [q.seq for q in look(delivery, (QuarantineState.DISCARDED,))] == [8]


def test_refused_again_it_is_held_with_the_new_reason_and_can_be_discarded(delivery: Delivery) -> None:
    [row] = set_aside(delivery, 7)
    quarantine.start_replay(delivery.ledger, row.id)
    assert quarantine.refused_again(delivery.ledger, row.id, "413: too large")
    [now] = look(delivery)
    assert (now.state, now.reason) == (QuarantineState.HELD, "413: too large")
    assert quarantine.discard(delivery.ledger, row.id)


MOVES = ("held", "replaying", "replayed", "discarded")
ALLOWED = {
    ("held", "held"),
    ("held", "replaying"),
    ("held", "discarded"),
    ("replaying", "replaying"),
    ("replaying", "replayed"),
    ("replaying", "held"),
}


@pytest.mark.parametrize("before", MOVES)
def test_the_store_itself_refuses_every_other_way(delivery: Delivery, before: str) -> None:
    rows = set_aside(delivery, 2, 4, 6, 8)
    for row, after in zip(rows, MOVES, strict=True):
        quarantine.start_replay(delivery.ledger, row.id)
        if before == "replayed":
            quarantine.replayed(delivery.ledger, row.id)
        elif before != "replaying":
            quarantine.refused_again(delivery.ledger, row.id, "again")
        if before == "discarded":
            quarantine.discard(delivery.ledger, row.id)
        was_refused = delivery.is_refused(f"UPDATE quarantined SET state = '{after}' WHERE id = {row.id}")
        assert was_refused == ((before, after) not in ALLOWED), (before, after)


@pytest.mark.parametrize("change", ["seq = 9", "object = 'x'", "options = '{}'", "form = 'x'", "replay_number = 9"])
def test_the_store_itself_refuses_to_change_what_was_set_aside(delivery: Delivery, change: str) -> None:
    [row] = set_aside(delivery, 7)
    quarantine.start_replay(delivery.ledger, row.id)
    assert delivery.is_refused(f"UPDATE quarantined SET {change} WHERE id = {row.id}")
    assert delivery.is_refused(f"DELETE FROM quarantined WHERE id = {row.id}")


def test_a_reset_begins_with_nothing_set_aside_and_what_was_is_still_listed(delivery: Delivery) -> None:
    set_aside(delivery, 7)
    delivery.reset()
    delivery.lease = delivery.take()
    assert counted(delivery) == 0
    assert [(q.generation, q.seq) for q in look(delivery)] == [(1, 7)]
    set_aside(delivery, 7)
    assert counted(delivery) == 1
    rows = look(delivery)
    assert [(q.generation, q.seq) for q in rows] == [(1, 7), (2, 7)]
    assert [quarantine.start_replay(delivery.ledger, q.id) for q in rows] == [1, 1], "a lane of its own each"


def test_a_sink_with_rows_that_were_set_aside_can_be_removed(delivery: Delivery) -> None:
    set_aside(delivery, 7)
    with delivery.ledger.write() as connection:
        assert sinks.remove(connection, delivery.sink.id)
    assert [q.seq for q in look(delivery)] == [7]


def test_status_counts_what_was_set_aside_by_partition(delivery: Delivery) -> None:
    chunks = tuple(planned(a, b) for a, b in ((1, 6), (7, 7), (8, 8), (9, 100)))
    stored = delivery.plan(100, LanePlan("k=a", None, Seq(100), chunks), one_chunk("k=b", None, 100))
    assert stored is not None

    def told() -> dict[str | None, int]:
        found = sink_status.load_sinks(delivery.ledger, LAKE, delivery.sink.name)
        assert [lake_documents.sink_status(s)["quarantined"] for s in found] == [s.quarantined for s in found]
        return {s.partition: s.quarantined for s in found}

    assert told() == {"k=a": 0, "k=b": 0}
    assert quarantine.quarantine_rows(delivery.ledger, delivery.lease, refused(stored[0], 7, 8))
    assert told() == {"k=a": 2, "k=b": 0}
    quarantine.discard(delivery.ledger, look(delivery)[0].id)
    assert told() == {"k=a": 1, "k=b": 0}


def test_rows_of_several_pages_come_once_and_only_of_the_sinks_asked_for(delivery: Delivery) -> None:
    set_aside(delivery, 3, 5, 7)
    found: list[Quarantined] = []
    after = None
    with delivery.ledger.read() as connection:
        while page := quarantine.page(connection, [delivery.sink.id], states=NOT_DELIVERED, after=after, rows_max=2):
            found += page
            after = page[-1].id
        assert quarantine.page(connection, [], states=None, after=None, rows_max=9) == []
        assert quarantine.page(connection, [delivery.sink.id], states=(), after=None, rows_max=9) == []
    assert [row.seq for row in found] == [3, 5, 7]
