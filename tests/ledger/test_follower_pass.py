"""Passes of a follower over a real ledger, with items that cannot be applied and datasets that cannot be created."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.core.errors import FailedError, RefusedError, StorageError
from strandline.core.settings.follow import FollowSettings
from strandline.core.sites.replication import DatasetTerms, Offer
from strandline.core.types import SEQ_MAX, DatasetUuid, Seq
from strandline.ledger.ingest import datasets
from strandline.ledger.replicate import following, sites
from strandline.replicate.follow import apply_item, follow_datasets
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.follower import Follower
from strandline.replicate.source import LeaderAnswer
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.test_following import offer, segment, take

ITEMS_MAX = 6


class Leader:
    """Has a batch of ten rows for each ten numbers, up to 1000."""

    def __init__(self, lake: LakeState) -> None:
        self._dataset = lake.dataset
        self.is_away = False
        self.polls: list[Mapping[DatasetUuid, Seq]] = []

    def poll(
        self, after: Mapping[DatasetUuid, Seq], *, items_max: int, sinks_version: str | None = None
    ) -> LeaderAnswer:
        self.polls.append(after)
        if self.is_away:
            raise StorageError("nobody answers")
        bound = int(after[self._dataset.uuid])
        items = [segment(lo, lo + 9) for lo in range(bound + 1, 1000, 10)][:items_max]
        offers: tuple[Offer, ...] = (offer(self._dataset, bound, items[-1].hi, *items),) if items else ()
        seals = {self._dataset.uuid: Seq(1000)}
        return LeaderAnswer(LAKE, 1, offers, seals=seals, sinks=(), datasets=(self._dataset.uuid,))

    def acknowledge(self, told: object) -> None: ...

    def close(self) -> None: ...


class LeaderOfMany(Leader):
    """Has datasets without rows, and says what is new of two in each answer: in the order of their ids."""

    def __init__(self, lake: LakeState, made: list[str]) -> None:
        super().__init__(lake)
        self._made = list(map(DatasetUuid, made))

    def poll(
        self, after: Mapping[DatasetUuid, Seq], *, items_max: int, sinks_version: str | None = None
    ) -> LeaderAnswer:
        self.polls.append(after)
        new = [id for id in self._made if id not in after][:2]
        made = tuple(DatasetTerms(id, f"default.{id}", (), (), None, 0, 1) for id in new)
        return LeaderAnswer(LAKE, 1, (), made, datasets=(self._dataset.uuid, *self._made), sinks=())


@pytest.fixture
def leader(sqlite_lake: LakeState) -> Leader:
    with sqlite_lake.ledger.write() as connection:
        sites.follow(connection, leader="https://leader", token=None, term=1)
        following.follow_dataset(connection, sqlite_lake.dataset.id)
    return Leader(sqlite_lake)


@pytest.fixture
def follower(sqlite_lake: LakeState, leader: Leader, tmp_path: Path) -> Follower:
    return following_of(sqlite_lake, leader, tmp_path)


def following_of(lake: LakeState, leader: Leader, tmp_path: Path) -> Follower:
    parts = cast("Any", SimpleNamespace(ingestion=SimpleNamespace(catch_up=lambda: None)))
    since = lake.ledger.query(sites.get).changed_at
    context = FollowContext(LAKE, lake.config, lake.ledger, lake.witness, cast("Any", leader), since, parts)
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
    sqlite_lake: LakeState, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = applying(monkeypatch, lambda: FailedError("its columns do not fit"))
    for _ in range(4):
        assert len(follower.tick().failed) == ITEMS_MAX
    assert len(sqlite_lake.ledger.query(following.open_items)) == ITEMS_MAX
    assert len(tried) == 4 * ITEMS_MAX
    [found] = sqlite_lake.ledger.query(following.list_followed)
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


def test_a_dataset_that_is_full_takes_no_place_in_an_answer(
    sqlite_lake: LakeState, follower: Follower, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader would read its table for each answer, and leave other datasets out."""
    applying(monkeypatch, lambda: FailedError("its columns do not fit"))
    follower.tick()
    follower.tick()
    own = sqlite_lake.dataset.uuid
    assert [after[own] for after in leader.polls] == [0, SEQ_MAX]


def test_datasets_that_cannot_be_created_do_not_keep_the_others_out_of_the_answers(
    sqlite_lake: LakeState, leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = [f"a{n}" for n in range(5)]
    lake, many = sqlite_lake, LeaderOfMany(sqlite_lake, [*damaged, "good"])
    follower = following_of(lake, many, tmp_path)

    def make(context: FollowContext, terms: DatasetTerms, term: int) -> None:
        if terms.id in damaged:
            raise RefusedError(f"{terms.name} is somebody else's")
        with context.change() as connection:
            made = datasets.add(connection, name=terms.name, table_uuid=terms.id, uuid=terms.id)
            following.follow_dataset(connection, made.id)

    monkeypatch.setattr(follow_datasets, "make_dataset", make)
    reports = [follower.tick() for _ in range(3)]
    assert [r.made for r in reports] == [[], [], ["default.good"]]
    assert [len(r.failed) for r in reports] == [2, 4, 5], "those that are not asked for are still named"
    assert all(r.dropped == [] for r in reports)
    damaged.remove("a0")  # its cause has ended; there is a place for it now
    assert [r.made for r in (follower.tick(), follower.tick(), follower.tick())].count(["default.a0"]) == 1


def test_a_pass_that_begins_with_as_many_open_items_as_it_may_have_gets_the_rest_too(
    sqlite_lake: LakeState, follower: Follower, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed has left them. The offer is left out until they are applied."""
    lake = sqlite_lake
    offers = leader.poll({lake.dataset.uuid: Seq(0)}, items_max=ITEMS_MAX).offers
    following.record(lake.ledger, lake.witness, offers)

    def apply(context: object, of: object, item: following.OpenItem) -> bool:
        held = take(lake, int(item.head.rows.lo))
        return following.settle_without_rows(lake.ledger, lake.witness, held, row_count=0)

    monkeypatch.setattr(apply_item, "apply_item", apply)
    assert follower.tick().recorded == 100 - ITEMS_MAX
    [found] = lake.ledger.query(following.list_followed)
    assert found.bound == 1000 and lake.ledger.query(following.open_items) == []


def test_a_pass_ends_while_another_process_has_as_many_open_items_as_there_may_be(
    sqlite_lake: LakeState, follower: Follower, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = leader.poll({sqlite_lake.dataset.uuid: Seq(0)}, items_max=ITEMS_MAX).offers
    following.record(sqlite_lake.ledger, sqlite_lake.witness, offers)
    monkeypatch.setattr(apply_item, "apply_item", lambda *_: False)
    assert (follower.tick().recorded, len(leader.polls)) == (0, 2)
