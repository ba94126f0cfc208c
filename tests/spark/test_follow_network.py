"""A follower behind a network that cuts, delays, damages, repeats and mixes up: what arrives otherwise than it was sent
is refused and fetched again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline import Lake
from strandline.core.errors import StrandlineError
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import follow_lake
from strandline.ledger.replicate import followers
from strandline.replicate.transports import http, segment_fetch
from tests.conftest import MakeHome
from tests.serve.conftest import serving
from tests.spark.followed import SETTINGS, assert_same, follow, new_leader, restarted
from tests.spark.protocol import COLUMNS, frame
from tests.spark.relay import (
    Afterwards,
    Answered,
    CutShort,
    Damaged,
    Fate,
    Instead,
    Late,
    Relay,
    Request,
    Swapped,
    Twice,
    relaying,
)

TOKEN = "TEST_FOLLOWER_TOKEN"


class Net:
    """A leader, its follower, and the way between them."""

    def __init__(self, leader: Lake, follower: Lake, relay: Relay) -> None:
        self.leader = leader
        self.follower = follower
        self.relay = relay

    def fails(self, what: str, *fates: Fate) -> None:
        """What the next requests of this kind meet."""
        self.relay.concerns = lambda request: f"/replication/{what}" in request.path
        self.relay.forget()
        self.relay.will_only(*fates)

    def requests(self, what: str) -> list[Request]:
        return [r for r in self.relay.seen if f"/replication/{what}" in r.path]

    def answers(self, what: str) -> list[Answered]:
        return [a for r in self.requests(what) for a in r.passed]

    def told(self) -> int | None:
        [progress] = self.leader.ledger.query(followers.list_progress, self.leader.dataset("events"))
        return progress.number


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Net]:
    folder = tmp_path_factory.mktemp("net")
    with new_leader(folder, make_home) as leader, pytest.MonkeyPatch.context() as patch:
        leader.create_dataset("events", parse_columns(COLUMNS))
        patch.setenv(TOKEN, leader.followers.add("east")[1])
        patch.setattr(segment_fetch, "_PAUSE_SECONDS", 0.0)
        patch.setattr(http, "PART_NUMBERS", 100)
        with serving(leader) as url, relaying(int(url.rpartition(":")[2])) as relay:
            make_home(folder / "follower", SETTINGS)
            address = f"http://127.0.0.1:{relay.port}"
            with follow_lake(folder / "follower", address, token=f"env:{TOKEN}") as follower:
                follow(follower)
                yield Net(leader, follower, relay)


def test_a_segment_that_is_cut_damaged_late_or_another_one_is_fetched_again(net: Net) -> None:
    net.leader.append("events", frame(net.leader, 0, 50), batch_id="first")
    follow(net.follower)
    other = net.answers("segment")[-1]
    net.leader.append("events", frame(net.leader, 50, 300), batch_id="a")
    net.fails(
        "segment",
        CutShort(0.5), Damaged(0.02), Swapped(other), Damaged(0.3), None,  # the columns come before the rows
        Instead(503), Damaged(0.5), Late(0.2), CutShort(0.9), Twice(), Swapped(other),  # of three parts
    )  # fmt: skip
    follow(net.follower)
    assert net.relay.is_done(), "not all of these happened"
    assert_same(net.leader, net.follower)


def test_a_segment_that_never_arrives_whole_is_given_up_and_fetched_in_a_later_pass(net: Net) -> None:
    net.leader.append("events", frame(net.leader, 400, 5), batch_id="b")
    before = net.follower.sealed("events")
    net.fails("segment", *[Damaged(0.5)] * segment_fetch.ATTEMPTS_MAX)
    report = net.follower.replication.follow_once()
    assert len(report.failed) == 1 and report.applied == []
    assert net.follower.sealed("events") == before
    follow(net.follower)
    assert_same(net.leader, net.follower)


def test_an_offer_that_is_damaged_late_repeated_or_of_another_time_changes_nothing(net: Net) -> None:
    net.leader.append("events", frame(net.leader, 500, 5), batch_id="c")
    net.fails("offer")
    follow(net.follower)
    assert_same(net.leader, net.follower)
    earlier = net.answers("offer")[0]
    last = net.leader.append("events", frame(net.leader, 510, 5), batch_id="d").rows.hi
    body = len(earlier.body)
    # A digit is worth most at the end of a number: those of the items, of `upto` and of the seal.
    damages: list[Fate] = [Damaged(at / body) for at in range(0, body, max(1, body // 40))]
    net.fails("offer", *damages, CutShort(0.5), Instead(503), Instead(429), Afterwards(None), Late(0.2))
    for _ in range(len(damages) + 4):
        with pytest.raises(StrandlineError, match="does not answer"):
            net.follower.replication.follow_once()
    assert net.follower.sealed("events") != last
    net.fails("offer", Swapped(earlier), Twice())
    assert net.follower.replication.follow_once().recorded == 0, "an offer of before was recorded"
    follow(net.follower)
    net.fails("offer", Swapped(earlier))
    assert net.follower.replication.follow_once().recorded == 0
    assert_same(net.leader, net.follower)
    assert net.follower.sealed("events") == last


def test_what_a_follower_says_is_heard_as_it_was_said_or_not_at_all(net: Net) -> None:
    told = net.told()
    last = net.leader.append("events", frame(net.leader, 600, 5), batch_id="e").rows.hi
    # The last digits of the seal and of the mark are near the end.
    fates: list[Fate] = [Damaged(at / 40, request=True) for at in range(0, 40, 3)]
    net.fails("acknowledge", *fates, Instead(503), CutShort(0.3), Afterwards(None))
    for _ in fates:
        with pytest.raises(StrandlineError):
            net.follower.replication.follow_once()
        assert net.told() == told
    with pytest.raises(StrandlineError):
        net.follower.replication.follow_once()
    assert net.told() == told
    for _ in range(2):
        with pytest.raises(StrandlineError):
            net.follower.replication.follow_once()
    restarted(net.follower)
    follow(net.follower)
    assert net.told() == last
    assert_same(net.leader, net.follower)
