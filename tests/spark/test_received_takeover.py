"""A receiver whose site is replaced: a client that repeats a body and a lake that forwards go on at the new leader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline import Lake
from strandline.lake_admin import follow_lake, rejoin_lake
from strandline.ledger.receive import batches
from strandline.ledger.receive.announced_bodies import read, unknown_batches
from tests.conftest import MakeHome
from tests.spark.bodies import Sender
from tests.spark.followed import SETTINGS, assert_same, follow, restarted, take_over
from tests.spark.forwarding import SETTINGS as RECEIVING
from tests.spark.forwarding import Receiving, Way, open_end, open_way
from tests.spark.lakes import create, in_order, sql
from tests.spark.protocol import crash_at, outlive_lease

COLUMNS = {"n": "long", "k": "string"}


@contextmanager
def follower_of(leader: Lake, folder: Path, make_home: MakeHome) -> Iterator[Lake]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    token = folder.parent / f"token-of-{folder.name}"
    token.write_text(leader.followers.add(folder.name)[1])
    make_home(folder, SETTINGS | RECEIVING)
    with follow_lake(folder, str(leader.config.home), token=f"file:{token}") as lake:
        follow(lake)
        yield lake


@dataclass
class Client:
    """Of one dataset. It repeats a body for which it got no answer."""

    secret: str
    port: int

    def post(self, key: str, *numbers: int) -> httpx.Response:
        rows = "".join(json.dumps({"n": n, "k": key}) + "\n" for n in numbers).encode()
        headers = {
            "Authorization": f"Bearer {self.secret}",
            "Content-Type": "application/x-ndjson",
            "Idempotency-Key": key,
        }
        return httpx.post(
            f"http://127.0.0.1:{self.port}/v1/datasets/events/rows", content=rows, headers=headers, timeout=60
        )


def numbers(lake: Lake, name: str) -> list[Any]:
    return [r[0] for r in in_order(sql(lake, f"SELECT n FROM lake.default.{name}"))]


@dataclass
class Sites:
    to: Receiving
    follower: Lake
    way: Way  # of a lake that forwards to the leader


@pytest.fixture
def sites(tmp_path: Path, make_home: MakeHome) -> Iterator[Sites]:
    with ExitStack() as stack:
        sender = stack.enter_context(open_end(tmp_path / "sender", make_home))
        to = stack.enter_context(open_end(tmp_path / "leader", make_home, SETTINGS))
        create(to.lake, "events", COLUMNS)
        way = stack.enter_context(open_way(sender.lake, to, "forwarded"))
        yield Sites(to, stack.enter_context(follower_of(to.lake, tmp_path / "follower", make_home)), way)


def test_a_repeated_body_gets_the_stored_answer_and_a_lake_that_forwards_goes_on(sites: Sites, tmp_path: Path) -> None:
    old, new, way = sites.to.lake, sites.follower, sites.way
    client = Client(old.receiver.create_token("shop")[1], sites.to.port)
    assert client.post("in", 1, 2, 3).status_code == 202
    way.add()
    way.ingest(6)
    way.deliver()
    sites.to.ingest()
    follow(new)
    first = client.post("in", 1, 2, 3)
    # Bodies that are answered, and whose rows never get to the follower: one in the table, one in the spool.
    assert client.post("given up", 4, 5).status_code == 202
    sites.to.ingest()
    assert client.post("waits", 6).status_code == 202
    sites.to.stop()
    take_over(new, 17)
    at_new = Receiving(new)
    try:
        assert Client(new.receiver.create_token("stranger")[1], at_new.port).post("other", 100).status_code == 202
        client = Client(new.receiver.create_token("shop-2", replaces="shop")[1], at_new.port)
        again = client.post("in", 1, 2, 3)
        assert (again.status_code, again.json()) == (202, first.json()) and again.json()["repeat"]
        assert client.post("in", 7).status_code == 422, "the key was used for another body"
        for key, rows in (("given up", (4, 5)), ("waits", (6,))):
            answer = client.post(key, *rows)
            assert answer.status_code == 202 and not answer.json()["repeat"], "its rows are not here"
        _forward_to(way, new, at_new)
        way.ingest(4)
        way.deliver()
        at_new.ingest()
        assert sorted(numbers(new, "events")) == [1, 2, 3, 4, 5, 6, 100]
        assert numbers(new, "forwarded") == way.whole and way.verdict().ok
    finally:
        at_new.stop()
    _old_leader_follows(old, new, tmp_path)


def _forward_to(way: Way, lake: Lake, at: Receiving) -> None:
    """The sink is added again with another address, and a token that continues the line of its own."""
    [name] = [t.name for t in lake.receiver.list_tokens() if t.name == way.token.name and t.revoked_at is not None]
    way.token.write_text(lake.receiver.create_token(f"{name}-2", replaces=name)[1] + "\n")
    way.sender.delivery.remove(way.sink)
    way.add(url=f"http://127.0.0.1:{at.port}/v1/datasets/{way.name}/rows")


def _old_leader_follows(old: Lake, new: Lake, folder: Path) -> None:
    """It knows what the new leader knows; the body that waited there, and was sent again, waits no more."""
    (folder / "back").write_text(new.followers.add("old")[1])
    done = rejoin_lake(old.config, str(new.config.home), token=f"file:{folder / 'back'}")
    assert [(b.dataset, b.bodies) for b in done.bodies] == [("default.events", 1)]
    restarted(old)
    old.replication.follow_once()  # two cuts at once: the epoch of one may pass the other's, which is carried out again
    follow(old)
    for name in ("events", "forwarded"):
        assert_same(new, old, name)
    [events] = [d for d in old.datasets() if d.name == "default.events"]
    with old.ledger.read() as connection:
        assert batches.waiting(connection, events.id) == (0, 0)
        assert unknown_batches(connection, events.id) == []


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[tuple[Sender, Lake]]:
    folder = tmp_path_factory.mktemp("sites")
    with open_end(folder / "leader", make_home, SETTINGS) as to:
        create(to.lake, "events", {"n": "long"})
        with follower_of(to.lake, folder / "follower", make_home) as follower:
            yield Sender(to.lake, "events"), follower


@pytest.mark.parametrize("point", ["announced_bodies.after_receipt", "announced_bodies.after_record"])
def test_a_follower_that_dies_while_it_records_bodies_has_each_once(pair: tuple[Sender, Lake], point: str) -> None:
    sender, follower = pair
    sender.bring([1, 2])
    sender.bring_range(1 + 10 * sender.sent, [3, 4])
    [report] = sender.ingest()
    restarted(follower)
    crash_at(follower, point, lambda: follow(follower))
    restarted(follower)
    outlive_lease(follower)
    follow(follower)
    assert_same(sender.lake, follower)
    known = [lake.ledger.query(read, sender.dataset.id, report.batch_id) for lake in (sender.lake, follower)]
    assert known[0] is not None and known[0] == known[1]
