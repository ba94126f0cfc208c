"""One pass of a follower over a real ledger, with items that cannot be applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.core.errors import FailedError, StorageError
from strandline.core.settings.follow import FollowSettings
from strandline.core.sites.replication import Offer
from strandline.core.types import DatasetUuid, Seq
from strandline.ledger.replicate import following, sites
from strandline.replicate.follow import apply_item
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.follower import Follower
from strandline.replicate.source import LeaderAnswer
from tests.ledger.conftest import LAKE, Bench
from tests.ledger.test_following import offer, segment

ITEMS_MAX = 6


class Leader:
    """Has a batch of ten rows for each ten numbers, up to 1000."""

    def __init__(self, bench: Bench) -> None:
        self._dataset = bench.dataset
        self.is_away = False
        self.polls = 0

    def poll(
        self, after: Mapping[DatasetUuid, Seq], *, items_max: int, sinks_version: str | None = None
    ) -> LeaderAnswer:
        self.polls += 1
        if self.is_away:
            raise StorageError("nobody answers")
        bound = int(after[self._dataset.uuid])
        items = [segment(lo, lo + 9) for lo in range(bound + 1, 1000, 10)][:items_max]
        offers: tuple[Offer, ...] = (offer(self._dataset, bound, items[-1].hi, *items),) if items else ()
        seals = {self._dataset.uuid: Seq(1000)}
        return LeaderAnswer(LAKE, 1, offers, seals=seals, sinks=(), datasets=(self._dataset.uuid,))

    def acknowledge(self, told: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def leader(sqlite_bench: Bench) -> Leader:
    with sqlite_bench.ledger.write() as connection:
        sites.follow(connection, leader="https://leader", token=None, term=1)
        following.follow_dataset(connection, sqlite_bench.dataset.id)
    return Leader(sqlite_bench)


@pytest.fixture
def follower(sqlite_bench: Bench, leader: Leader, tmp_path: Path) -> Follower:
    bench, parts = sqlite_bench, cast("Any", SimpleNamespace(ingestion=SimpleNamespace(catch_up=lambda: None)))
    since = bench.ledger.query(sites.get).changed_at
    context = FollowContext(LAKE, bench.config, bench.ledger, bench.witness, cast("Any", leader), since, parts)
    return Follower(context, FollowSettings(offer_items_max=ITEMS_MAX, items_at_once_max=1), tmp_path / "checkpoint")


def applying(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], Exception]) -> list[int]:
    """The first numbers of the items that are tried."""
    tried: list[int] = []

    def apply(context: object, of: object, item: following.OpenItem) -> bool:
        tried.append(int(item.head.rows.lo))
        raise fail()

    monkeypatch.setattr(apply_item, "apply_item", apply)
    return tried


def test_what_cannot_be_applied_does_not_pile_up(
    sqlite_bench: Bench, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = applying(monkeypatch, lambda: FailedError("its columns do not fit"))
    for _ in range(4):
        assert len(follower.tick().failed) == ITEMS_MAX
    assert len(sqlite_bench.ledger.query(following.open_items)) == ITEMS_MAX
    assert len(tried) == 4 * ITEMS_MAX
    [found] = sqlite_bench.ledger.query(following.list_followed)
    assert (found.bound, found.leader_seal) == (60, 1000)


def test_a_leader_that_goes_away_is_not_waited_for_by_every_item(
    follower: Follower, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def goes_away() -> Exception:
        leader.is_away = True
        return StorageError("nobody answers")

    tried = applying(monkeypatch, goes_away)
    assert len(follower.tick().failed) == len(tried) == 1
    with pytest.raises(StorageError):
        follower.tick()
    leader.is_away = False
    tried = applying(monkeypatch, lambda: StorageError("one of its files is gone"))
    follower.tick()
    assert len(tried) == ITEMS_MAX  # the leader answers, so it is only about the item
