"""Two sites with real receivers: what a client and a sender are told at the one that takes over. Rows are left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from strandline.core.types import DatasetUuid
from strandline.ledger.engine import utc_now
from strandline.ledger.receive import announced_bodies, batches
from strandline.ledger.receive.announced_bodies import AnnouncedBatch
from strandline.ledger.receive.receipts import open_receipts
from strandline.ledger.replicate import following, promotion_claims, promotions, sites
from strandline.ledger.witness import open_witness
from strandline.replicate.follow.fetch_bodies import take_bodies
from strandline.replicate.source import LeaderSource
from tests.conftest import MakeHome
from tests.ledger.conftest import LakeState
from tests.ledger.test_following import offer, record, segment, take
from tests.receive.conftest import LANE, Client, ReceivingLake, new_lake, some, span


@dataclass
class Leader:
    """A source as a follower has it."""

    lake: ReceivingLake

    def bodies(self, dataset: DatasetUuid, batch_id: str) -> AnnouncedBatch | None:
        return self.lake.ledger.query(announced_bodies.read, self.lake.dataset.id, batch_id)


def blocks_of(lake: ReceivingLake) -> LakeState:
    return LakeState(lake.config, lake.ledger, open_witness(lake.config), lake.dataset)


def ingest(lake: ReceivingLake) -> AnnouncedBatch:
    """What waits is in the table, as far as the ledger knows."""
    batch = batches.form(lake.ledger, lake.dataset.id, rows_max=1000, older_than=utc_now())
    assert batch is not None
    own = blocks_of(lake)
    published = own.publish(own.reserve(batch.batch_id, batch.rows))
    batches.settle(lake.ledger, batch, published.head.rows)
    told = Leader(lake).bodies(DatasetUuid(lake.dataset.uuid), batch.batch_id)
    assert told is not None
    return told


@pytest.fixture
def follower(tmp_path: Path, make_home: MakeHome) -> Iterator[ReceivingLake]:
    made = new_lake(make_home(tmp_path / "follower", {}))
    with made.ledger.write() as connection:
        connection.exec_driver_sql("DELETE FROM source")
        connection.exec_driver_sql("DELETE FROM api_token")
        sites.follow(connection, leader="https://leader", token=None, term=1)
        following.follow_dataset(connection, made.dataset.id)
    with made.stack:
        yield made
    made.ledger.close()


def test_a_repeat_gets_the_stored_answer_at_the_site_that_takes_over_and_what_was_given_up_is_new(
    lake: ReceivingLake, client: Client, follower: ReceivingLake
) -> None:
    assert client.send(some(3), "in").status_code == client.send(some(3), rows=span(1, 3)).status_code == 202
    first = ingest(lake)
    stored = [client.send(some(3), "in").json(), client.send(some(3), rows=span(1, 3)).json()]
    assert client.send(some(2, 4), "given up").status_code == client.send(some(3), rows=span(4, 6)).status_code == 202
    second = ingest(lake)
    assert client.send(some(1, 6), "waits").status_code == 202
    _takes_over(follower, Leader(lake), first, second)

    served = follower.serve()
    other = Client(served.base, follower.add_token("other"))
    assert other.send(some(3), rows=span(7, 9)).status_code == 403, "the lanes belong to the token that claimed them"
    other.http.close()
    at_new = Client(served.base, follower.add_token("second", replaces="first"))
    assert [at_new.send(some(3), "in").json(), at_new.send(some(3), rows=span(1, 3)).json()] == stored
    assert at_new.send(some(2), "in").status_code == 422
    assert follower.files() == [], "nothing of it is ingested again"
    asked = {"lake": LANE.lake, "instance": LANE.instance, "generation": 1, "dataset": LANE.dataset}
    [held] = at_new.ask("held", **asked, lanes=[{"partition": "", "after": None}]).json()["lanes"]
    assert [r[:2] for r in held["ranges"]] == [[1, 3]]
    again = [
        at_new.send(some(2, 4), "given up"),
        at_new.send(some(3), rows=span(4, 6)),
        at_new.send(some(1, 6), "waits"),
    ]
    assert [(a.status_code, a.json()["repeat"]) for a in again] == [(202, False)] * 3
    assert len(follower.files()) == 3
    at_new.http.close()


def _takes_over(follower: ReceivingLake, leader: Leader, first: AnnouncedBatch, second: AnnouncedBatch) -> None:
    """The first batch is applied; of the second the bodies are recorded, and its rows did not come."""
    own = blocks_of(follower)
    items = [segment(b.numbers.lo, b.numbers.hi, batch_id=b.receipt.batch_id) for b in (first, second)]
    record(own, offer(follower.dataset, 0, second.numbers.hi, *items))
    for told in (first, second):
        held = take(own, told.numbers.lo)
        receipts, source = open_receipts(follower.config), cast("LeaderSource", leader)
        take_bodies(follower.ledger, receipts, source, follower.dataset, held)
        if told is first:
            own.publish(held)
    promotion_claims.claim(follower.ledger, 17, of=promotion_claims.begin(follower.ledger, 1))
    led = promotions.lead(follower.ledger, own.witness, 17, prepared=(), lost=(), fenced={})
    assert [g.batch_id for g in led.given_up] == [second.receipt.batch_id] and led.receivers_on_hold == {}
