"""Replication as a person sees it over HTTP: status, followers that are added, looked at and removed, their pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.core.errors import StorageError
from strandline.core.roles import Role
from strandline.core.sites.replication import DatasetTerms, Item, Offer
from strandline.core.types import Dataset, ItemKind, Seq
from strandline.ledger.engine import utc_now
from strandline.ledger.replicate import following, leader_contact, leader_seals, sites
from strandline.ledger.replicate.leader_contact import FollowFailure, FollowStep, LeaderContact
from tests.serve.conftest import API, Served
from tests.serve.test_pages import browser
from tests.serve.test_replication import add_rows, made

__all__ = ["browser"]

AT = f"{API}/replication"


def tell(served: Served, secret: str, dataset: Dataset, mark: int) -> None:
    told = {"term": 1, "instance": "its site", "seals": {dataset.uuid: mark}, "marks": {str(dataset.first_shard): mark}}
    with served.client(secret) as follower:
        assert follower.post(f"{AT}/acknowledge", json=told).status_code == 200


def test_a_follower_is_added_looked_at_and_removed(served: Served, admin: httpx.Client) -> None:
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    add_rows(served, dataset, "b", 5)
    new = admin.post(f"{AT}/followers", json={"name": "east"})
    assert new.status_code == 201 and new.json()["secret"].startswith("sl_") and new.json()["datasets"] is None
    [unknown] = admin.get(f"{AT}/followers/east").json()["shards"]
    assert [unknown[n] for n in ("high_water", "lag_segments", "lag_rows", "lag_seconds", "reported_at")] == [None] * 5
    tell(served, new.json()["secret"], dataset, 10)
    [shard] = admin.get(f"{AT}/followers/east/shards").json()["shards"]
    assert (shard["high_water"], shard["lag_segments"], shard["lag_rows"]) == (10, 1, 5) and shard["lag_seconds"] >= 0
    found = admin.get(f"{AT}/status").json()
    assert (found["role"], found["term"], found["leader"], found["shards"]) == ("leader", 1, None, [])
    assert [f["name"] for f in found["followers"]] == ["east"] and found["followers_total"] == 1
    dry = admin.delete(f"{AT}/followers/east", params={"dry_run": True}).json()
    assert dry == {"removed": "east", "dry_run": True, "lag_rows": 5, "holds_retention_of": []}
    assert admin.delete(f"{AT}/followers/east").json()["dry_run"] is False
    assert admin.get(f"{AT}/followers/east").status_code == 404
    assert admin.get(f"{AT}/followers").json() == {"followers": [], "next": None}


def test_followers_are_paged_by_name_and_shards_by_number(served: Served, admin: httpx.Client) -> None:
    columns = [{"name": "id", "type": "long"}]
    assert admin.post(f"{API}/datasets", json={"name": "d", "columns": columns, "shards": 3}).status_code == 201
    for name in ("a", "b", "c"):
        assert admin.post(f"{AT}/followers", json={"name": name}).status_code == 201
    first = admin.get(f"{AT}/followers", params={"limit": 2}).json()
    assert ([f["name"] for f in first["followers"]], first["next"]) == (["a", "b"], "b")
    rest = admin.get(f"{AT}/followers", params={"limit": 2, "after": first["next"]}).json()
    assert ([f["name"] for f in rest["followers"]], rest["next"]) == (["c"], None)
    shards = admin.get(f"{AT}/followers/a/shards", params={"limit": 2}).json()
    assert len(shards["shards"]) == 2
    [last] = admin.get(f"{AT}/followers/a/shards", params={"after": shards["next"]}).json()["shards"]
    assert last["shard"] == shards["next"] + 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "x", "on_lag": "drop"}, 400),
        ({"name": "x", "drop_after": "7d"}, 400),
        ({"name": "x", "on_lag": "maybe"}, 422),
        ({"name": "x", "drop_after": "soon", "on_lag": "drop"}, 422),
        ({"name": "x", "datasets": ["nosuch"]}, 404),
        ({"name": "taken"}, 409),
    ],
)
def test_a_follower_that_cannot_be_is_refused_in_words(
    served: Served, admin: httpx.Client, body: dict[str, Any], status: int
) -> None:
    served.lake.followers.add("taken")
    answer = admin.post(f"{AT}/followers", json=body)
    assert answer.status_code == status, answer.text
    assert [f.name for f in served.lake.followers.list()] == ["taken"]


def test_a_limited_token_sees_only_followers_of_its_datasets(served: Served, admin: httpx.Client) -> None:
    mine, other = made(served, "mine"), made(served, "other")
    served.lake.followers.add("of-other", [other.name])
    served.lake.followers.add("of-both", [mine.name, other.name])
    with served.client(served.token("limited", Role.READ, only=[mine.name])) as limited:
        [seen] = limited.get(f"{AT}/followers").json()["followers"]
        assert (seen["name"], seen["datasets"]) == ("of-both", [mine.name])
        assert [s["dataset"] for s in seen["shards"]] == [mine.name]
        assert limited.get(f"{AT}/followers/of-other").status_code == 404
        assert limited.get(f"{AT}/followers/of-other/shards").status_code == 404
        assert {f["dataset"] for f in limited.get(f"{AT}/status").json()["followers"]} == {mine.name}
        assert {f["dataset"] for f in limited.get(f"{API}/status").json()["followers"]} == {mine.name}


@contextmanager
def follows(served: Served, dataset: Dataset, *, failing: str | None) -> Iterator[None]:
    """As if the site followed another one: two segments are recorded, none of them is applied."""
    terms = DatasetTerms(dataset.uuid, dataset.name, (), (), None, dataset.first_shard, dataset.shards)
    items = [Item(ItemKind.SEGMENT, Seq(lo), Seq(lo + 9), dataset.first_shard, 10, f"b{lo}", None) for lo in (1, 11)]
    lake = served.lake
    failure = None if failing is None else FollowFailure(utc_now() - timedelta(hours=1), FollowStep.ASK, failing, None)
    with lake.ledger.write() as connection:
        sites.follow(connection, leader="https://leader.example", token="env:TOKEN", term=1)
        following.follow_dataset(connection, dataset.id)
        leader_contact.forget(connection)
    following.record(lake.ledger, lake.witness, [Offer(lake.id, 1, terms, Seq(0), Seq(20), tuple(items), Seq(20))])
    leader_contact.note(lake.ledger, LeaderContact(), LeaderContact(utc_now(), failure))
    yield


def test_a_follower_says_how_far_it_is_and_that_it_does_not_know_while_its_leader_is_away(served: Served) -> None:
    dataset = made(served)
    with follows(served, dataset, failing=None), served.as_role(Role.READ) as reader:
        found = reader.get(f"{AT}/status").json()
        assert (found["role"], found["leader"]["address"]) == ("follower", "https://leader.example")
        [shard] = found["shards"]
        assert (shard["applied"], shard["bound"], shard["leader_sealed"], shard["sealed"]) == (0, 20, 20, None)
        assert (shard["lag_segments"], shard["lag_rows"]) == (2, 20) and shard["lag_seconds"] >= 0
        [same] = reader.get(f"{AT}/shards").json()["shards"]
        assert same | {"lag_seconds": 0} == shard | {"lag_seconds": 0}
        for seals, untold in (({dataset.id: Seq(30)}, {}), ({}, {dataset.id: None})):  # more, or nobody knows
            served.lake.ledger.change(leader_seals.note, seals, untold)
            [shard] = reader.get(f"{AT}/shards").json()["shards"]
            assert [shard[n] for n in ("lag_segments", "lag_rows", "lag_seconds")] == [None] * 3
    away = StorageError("no route to https://leader.example")
    contact = LeaderContact(utc_now(), FollowFailure(utc_now(), FollowStep.ASK, away.message, "Look there."))
    leader_contact.note(served.lake.ledger, LeaderContact(), contact)
    with served.as_role(Role.READ) as reader:
        found = reader.get(f"{AT}/status").json()
        [shard] = found["shards"]
        assert [shard[n] for n in ("lag_segments", "lag_rows", "lag_seconds")] == [None] * 3
        assert (shard["open_items"], shard["open_rows"]) == (2, 20)
        assert (found["leader"]["error"], found["leader"]["next_step"]) == (away.message, "Look there.")
        assert "leader" in {p["subject"] for p in reader.get(f"{API}/status").json()["problems"]}


def test_a_limited_token_does_not_read_the_leaders_words(served: Served) -> None:
    dataset = made(served)
    with (
        follows(served, dataset, failing="default.secret cannot be read"),
        served.client(served.token("limited", Role.READ, only=[dataset.name])) as limited,
    ):
        for path in (f"{AT}/status", f"{API}/status", "/replication"):
            answer = limited.get(path)
            assert answer.status_code == 200 and "default.secret" not in answer.text, path


def test_the_page_of_a_leader_and_of_a_follower(served: Served, browser: httpx.Client) -> None:
    assert "No site follows this lake yet." in browser.get("/replication").text
    dataset = made(served)
    add_rows(served, dataset, "a", 10)
    _, secret = served.lake.followers.add("east")
    served.lake.followers.add("west <b>")
    tell(served, secret, dataset, 0)
    page = browser.get("/replication").text
    assert "catching up" in page and "not begun" in page and "west &lt;b&gt;" in page and "<b>" not in page
    one = browser.get("/replication/followers/east")
    assert one.status_code == 200 and "every dataset, also those made later" in one.text
    assert browser.get("/replication/followers/west%20%3Cb%3E").status_code == 200
    assert browser.get("/replication/followers/nobody").status_code == 404
    assert 'data-path="/api/v1/replication/followers/east"' in one.text


def test_the_page_of_a_follower_names_its_leader_and_the_next_step(served: Served, browser: httpx.Client) -> None:
    dataset = made(served)
    with follows(served, dataset, failing="no route"):
        page = browser.get("/replication").text
    assert "https://leader.example" in page and "No route." in page
    assert "at least 2" in page and "unknown" in page and "Add a follower" not in page
    assert "has not reached its leader for 1 h" in page


@pytest.fixture
def arbiter(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("arbiter")
    monkeypatch.setenv("ARBITER", f"file:{folder}")
    return folder


@pytest.mark.parametrize("settings", [{"replication": {"arbiter": "env:ARBITER", "lease_seconds": 86400}}])
def test_who_leads_is_in_the_api_on_the_page_and_in_the_metrics(
    arbiter: Path, served: Served, browser: httpx.Client
) -> None:
    lease = served.lake.replication.lease
    assert lease is not None
    served.lake.followers.add("east")
    lease.update_members()
    with served.as_role(Role.READ) as reader:
        found = reader.get(f"{AT}/status").json()["leadership"]
        assert (found["superseded_term"], found["arbiter"]["trouble"]) == (None, None)
        assert (found["arbiter"]["record"]["leads"], found["arbiter"]["record"]["members"]) == (True, [])
        assert found["arbiter"]["lease_seconds_left"] is not None
        assert found["candidates"] == [{"name": "east", "number": 1, "member": False}]
        arbiter.rename(arbiter.with_name("away"))
        assert reader.get(f"{AT}/status").json()["leadership"]["arbiter"]["trouble"] is None, "not asked each time"
        metrics = reader.get("/metrics").text
        for line in ("arbiter_answers 1.0", "site_superseded 0.0", 'site_member{follower="east"} 0.0'):
            assert f"strandline_{line}" in metrics
    assert "no follower yet" in browser.get("/replication").text
    dataset = made(served)
    served.lake.ledger.change(sites.supersede, term=17, by="https://new.example")
    page = browser.get("/replication").text
    assert ">replaced<" in page.lower() and "strandline rejoin https://new.example" in page
    with served.client(served.token("limited", Role.READ, only=[dataset.name])) as limited:
        found = limited.get(f"{AT}/status").json()["leadership"]
        assert (found["superseded_term"], found["superseded_by"], found["arbiter"]) == (17, None, None)
