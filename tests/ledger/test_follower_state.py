"""A follower runs on its `ReplicationState`: it begins with the checkpoint, keeps to the ledger, and tells from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.core.settings.follow import FollowSettings
from strandline.core.types import DatasetUuid, Seq, ShardId
from strandline.ledger.replicate import following, sites
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.follower import Follower
from strandline.replicate.source import LeaderAnswer
from tests.ledger.conftest import LAKE, Bench
from tests.ledger.test_following import apply, offer, record, segment


@dataclass
class Leader:
    """It has nothing new, and notes what it is told."""

    told: list[Acknowledgement] = field(default_factory=list)

    def poll(self, after: Mapping[DatasetUuid, Seq], **_: object) -> LeaderAnswer:
        return LeaderAnswer(LAKE, 1, datasets=tuple(after))

    def acknowledge(self, told: Acknowledgement) -> None:
        self.told.append(told)

    def close(self) -> None:
        pass


@dataclass
class Settled:
    def catch_up(self) -> None:
        pass


@dataclass
class Site:
    bench: Bench
    checkpoint: Path
    leader: Leader = field(default_factory=Leader)

    def started(self) -> Follower:
        bench = self.bench
        context = FollowContext(
            LAKE, bench.config, bench.ledger, bench.witness, cast(Any, self.leader),
            cast(Any, SimpleNamespace(ingestion=Settled())),
        )  # fmt: skip
        return Follower(context, FollowSettings(), self.checkpoint)


@pytest.fixture
def site(bench: Bench, tmp_path: Path) -> Site:
    """It has applied everything up to 10."""
    with bench.ledger.write() as connection:
        sites.follow(connection, leader="https://leader", token=None, term=1)
        following.follow_dataset(connection, bench.dataset.id)
    record(bench, offer(bench.dataset, 0, 10, segment(1, 10)))
    apply(bench, 1)
    return Site(bench, tmp_path / "checkpoint")


def test_a_checkpoint_that_is_right_is_what_a_follower_begins_with(site: Site) -> None:
    """An idle pass writes nothing then: the follower has read that it is right."""
    site.started().tick()
    assert json.loads(site.checkpoint.read_bytes()) == {"0": 10}
    written = site.checkpoint.stat().st_ino
    follower = site.started()
    assert follower.state.applied_seqno(ShardId(0)) == 10
    follower.tick()
    assert site.checkpoint.stat().st_ino == written


@pytest.mark.parametrize("other", [None, b"{", b'{"0": 3}', b'{"0": 99999}', b'{"0": 10, "7": 5}'])
def test_a_checkpoint_that_is_wrong_is_set_right_by_the_ledger_in_an_idle_pass(site: Site, other: bytes | None) -> None:
    if other is not None:
        site.checkpoint.write_bytes(other)
    follower = site.started()
    assert follower.state.snapshot() == {ShardId(0): 10}
    follower.tick()
    assert json.loads(site.checkpoint.read_bytes()) == {"0": 10}


def test_what_a_follower_tells_is_its_state_and_it_goes_on_as_the_ledger_does(site: Site) -> None:
    follower = site.started()
    follower.tick()
    record(site.bench, offer(site.bench.dataset, 10, 20, segment(11, 20)))
    apply(site.bench, 11)
    assert follower.state.snapshot() == {ShardId(0): 10}
    follower.tick()
    assert follower.state.applied_seqno(ShardId(0)) == 20 and follower.state.applied_seqno(ShardId(7)) is None
    assert [told.marks for told in site.leader.told] == [{ShardId(0): 10}, {ShardId(0): 20}]
