"""A follower runs on its `ReplicationState`: it begins with the checkpoint, keeps to the ledger, and tells from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.core.errors import RefusedError, WatermarkMoved
from strandline.core.settings.follow import FollowSettings
from strandline.core.sites.replication import SinkDefinition
from strandline.core.types import DatasetUuid, Seq, ShardId
from strandline.ledger.ingest import datasets
from strandline.ledger.replicate import following, leader_sinks, promotion_claims, promotions, sites
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.follow_datasets import drop_dataset
from strandline.replicate.follow.follower import Follower
from strandline.replicate.follow.leader_sinks import LeaderSinks
from strandline.replicate.source import LeaderAnswer
from tests.ledger.conftest import LAKE, LakeState
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
    lake: LakeState
    checkpoint: Path
    leader: Leader = field(default_factory=Leader)

    def started(self) -> Follower:
        lake = self.lake
        since = lake.ledger.query(sites.get).changed_at
        context = FollowContext(
            LAKE, lake.config, lake.ledger, lake.witness, cast(Any, self.leader), since,
            cast(Any, SimpleNamespace(ingestion=Settled())),
        )  # fmt: skip
        return Follower(context, FollowSettings(), self.checkpoint)


@pytest.fixture
def site(lake: LakeState, tmp_path: Path) -> Site:
    """It has applied everything up to 10."""
    with lake.ledger.write() as connection:
        sites.follow(connection, leader="https://leader", token=None, term=1)
        following.follow_dataset(connection, lake.dataset.id)
    record(lake, offer(lake.dataset, 0, 10, segment(1, 10)))
    apply(lake, 1)
    return Site(lake, tmp_path / "checkpoint")


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
    record(site.lake, offer(site.lake.dataset, 10, 20, segment(11, 20)))
    apply(site.lake, 11)
    assert follower.state.snapshot() == {ShardId(0): 10}
    follower.tick()
    assert follower.state.applied_seqno(ShardId(0)) == 20 and follower.state.applied_seqno(ShardId(7)) is None
    assert [told.marks for told in site.leader.told] == [{ShardId(0): 10}, {ShardId(0): 20}]


def leads(lake: LakeState) -> None:
    with lake.ledger.write() as connection:
        sites.take_number(connection, 2)
    about_to_lead(lake)
    promotions.lead(lake.ledger, lake.witness, 18, prepared=(), lost=(), fenced={})


def about_to_lead(lake: LakeState) -> None:
    promotion_claims.claim(lake.ledger, 18, of=promotion_claims.begin(lake.ledger, 1))


def follows_another(lake: LakeState) -> None:
    lake.ledger.change(sites.follow, leader="https://other", token=None, term=1)


@pytest.mark.parametrize("becomes", [leads, about_to_lead, follows_another])
def test_what_a_leader_has_said_changes_nothing_once_the_site_leads_or_follows_anew(
    site: Site, becomes: Callable[[LakeState], None]
) -> None:
    """Sinks, too: a version that was not stored is not named in the next poll."""
    follower = site.started()
    told = LeaderSinks(site.lake.ledger, follower.context.change)
    told.store((), "v1")
    assert told.version() == "v1"
    becomes(site.lake)
    before = site.lake.ledger.query(leader_sinks.read)
    one = SinkDefinition(
        site.lake.dataset.uuid, "archive", "files", "instance-1", 2, (("path", "out"),), "file:///out", Seq(3), Seq(9),
        None, None, False, (),
    )  # fmt: skip
    with pytest.raises((RefusedError, WatermarkMoved)):
        told.store((one,), "v2")
    assert told.version() == "v1" and site.lake.ledger.query(leader_sinks.read) == before
    with pytest.raises((RefusedError, WatermarkMoved)):
        drop_dataset(follower.context, site.lake.dataset.uuid)
    assert not site.lake.ledger.query(datasets.is_dropped, site.lake.dataset.id)
    with pytest.raises((RefusedError, WatermarkMoved)):
        follower.tick()
