"""Replication in a browser: a leader with its followers, and a site whose leader does not answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from strandline.core.roles import Role
from strandline.core.sites.replication import DatasetTerms, Item, Offer
from strandline.core.types import Dataset, ItemKind, Seq, ShardId
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake
from strandline.ledger.engine import utc_now
from strandline.ledger.replicate import followers, following, leader_contact, sites
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.ledger.replicate.leader_contact import FollowFailure, FollowStep, LeaderContact
from tests.browser.conftest import DESKTOP, PHONE, Visitor, visit
from tests.browser.shown_lake import COLUMNS, append
from tests.browser.test_dashboard import cell, faults, figure, open_dialog, tab_to
from tests.serve.conftest import serving

LEADER = "https://leader.example:8421"


@dataclass
class Site:
    lake: Lake
    url: str
    session: Any  # the cookies of an admin


def tell(lake: Lake, follower: str, mark: int) -> None:
    orders = lake.dataset("orders")
    told = Acknowledgement(1, {orders.uuid: Seq(mark)}, {ShardId(orders.first_shard): Seq(mark)}, "the site")
    lake.ledger.change(followers.acknowledge, lake.followers.get(follower), told)


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Site]:
    """east has everything, west lacks 800 rows and holds retention, north has not begun."""
    folder = tmp_path_factory.mktemp("leader")
    with init_lake(folder):
        pass
    with open_lake(folder / "strandline.toml") as lake:
        lake.create_dataset("orders", COLUMNS)
        for rows in (1200, 800):
            append(lake, "orders", rows)
        for name in ("east", "west", "north"):
            lake.followers.add(name)
        tell(lake, "east", 2000)
        tell(lake, "west", 1200)
        with lake.ledger.write() as connection:
            west = followers.get(connection, "west").id
            followers.keep_holds(connection, lake.dataset("orders").id, [west], utc_now() - timedelta(hours=3))
        yield from served(lake, browser)


@pytest.fixture(scope="module")
def follower(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("follower")
    with init_lake(folder):
        pass
    with open_lake(folder / "strandline.toml") as lake:
        made = [lake.create_dataset(name, COLUMNS, shards=2) for name in ("clicks", "orders")]
        with lake.ledger.write() as connection:
            sites.follow(connection, leader=LEADER, token="env:TOKEN", term=1)
            for dataset in made:
                following.follow_dataset(connection, dataset.id)
        following.record(lake.ledger, lake.witness, [_offer(lake, dataset) for dataset in made])
        since = utc_now() - timedelta(minutes=30)
        failure = FollowFailure(
            since, FollowStep.ASK, f"the leader at {LEADER} does not answer: refused", "Look there."
        )
        leader_contact.note(lake.ledger, LeaderContact(), LeaderContact(since, failure))
        yield from served(lake, browser)


def _offer(lake: Lake, of: Dataset) -> Offer:
    terms = DatasetTerms(of.uuid, of.name, (), (), None, of.first_shard, of.shards)
    shards = (of.first_shard, ShardId(of.first_shard + 1))
    items = [
        Item(ItemKind.SEGMENT, Seq(n * 10 + 1), Seq(n * 10 + 10), s, 10, f"b{n}", None) for n, s in enumerate(shards)
    ]
    return Offer(lake.id, 1, terms, Seq(0), Seq(20), tuple(items), Seq(20))


def served(lake: Lake, browser: Browser) -> Iterator[Site]:
    secret = lake.receiver.create_token("the admin", role=Role.ADMIN)[1]
    with serving(lake) as url:
        context = browser.new_context()
        Visitor(context.new_page(), url).log_in(secret)
        state = context.storage_state()
        context.close()
        yield Site(lake, url, state)


@pytest.fixture
def at_leader(browser: Browser, leader: Site) -> Iterator[Visitor]:
    yield from visit(browser, leader.url, viewport=DESKTOP, storage_state=leader.session)


def test_every_page_of_replication_fits_its_window_and_has_no_serious_accessibility_fault(
    browser: Browser, leader: Site, follower: Site
) -> None:
    """Before the tests that change something."""
    found: list[tuple[str, ...]] = []
    phone = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    places = (
        ("replication-leader", leader, "/replication"),
        ("replication-follower", follower, "/replication"),
        ("follower", leader, "/replication/followers/west"),
        ("overview-of-a-follower", follower, "/"),
        ("overview-with-followers", leader, "/"),
    )
    for site in (leader, follower):
        for kind, options in (("desktop-light", {"viewport": DESKTOP}), ("phone-dark", phone)):
            for visitor in visit(browser, site.url, storage_state=site.session, **options):
                for name, _, place in (p for p in places if p[1] is site):
                    page = visitor.go(place)
                    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                    found += [(name, kind, f"{wide} pixels too wide")] if wide > 0 else []
                    found += [(name, kind, *fault) for fault in faults(page)]
                    visitor.picture(f"{name}-{kind}")
    assert found == []


def test_a_leader_shows_who_is_behind_and_what_is_not_known(at_leader: Visitor) -> None:
    page = at_leader.go("/replication")
    read = lambda row, label: page.locator(cell("followers", row, label)).inner_text()  # noqa: E731
    assert [read(name, "State") for name in ("east", "west", "north")] == ["up to date", "catching up", "not begun"]
    assert [read(name, "Lag, rows") for name in ("east", "west", "north")] == ["0", "800", "unknown"]
    assert [read(name, "Lag, segments") for name in ("east", "west", "north")] == ["0", "1", "unknown"]
    assert read("west", "Retention") == "holds rows" and read("north", "Lag, time") == "unknown"
    largest = " ".join(page.locator(figure("Largest lag")).inner_text().split())
    assert largest.startswith("at least 800 rows"), "one follower has said nothing"
    assert "held retention back" in page.locator("#problems").inner_text()
    page.get_by_role("link", name="west").click()
    expect(page.locator("h1")).to_have_text("west")
    assert page.locator(cell("shards", "default.orders", "Applied")).inner_text() == "1,200"


def test_a_follower_shows_what_fails_and_what_to_do(browser: Browser, follower: Site) -> None:
    for visitor in visit(browser, follower.url, viewport=DESKTOP, storage_state=follower.session):
        page = visitor.go("/replication")
        assert "follows" in page.locator("#role").inner_text()
        said = page.locator("#leader").inner_text()
        assert LEADER in said and "refused" in said and "Look there." in said
        assert re.search("unknown", page.locator(figure("Lag, rows")).inner_text())
        row = page.locator('#shards tr:has-text("default.clicks")').first
        assert "at least 10" in row.inner_text()
        assert page.get_by_role("button", name="Add a follower").count() == 0
        assert "has not reached its leader" in visitor.go("/").locator("#verdict").inner_text()


def test_lag_falls_on_an_open_page_when_a_follower_says_how_far_it_is(at_leader: Visitor, leader: Site) -> None:
    page = at_leader.go("/replication/followers/west")
    lag = page.locator(cell("shards", "default.orders", "Lag, rows"))
    expect(lag).to_have_text("800")
    page.evaluate("window.kept = true")
    tell(leader.lake, "west", 2000)
    expect(lag).to_have_text("0")
    expect(page.locator("#state")).to_have_text("up to date")
    assert page.evaluate("window.kept"), "the page was not loaded again"


def test_a_follower_is_added_with_the_keyboard_and_removed_after_a_dry_run(at_leader: Visitor, leader: Site) -> None:
    page = at_leader.go("/replication")
    tab_to(page, page.locator("main").get_by_role("button", name="Add a follower", exact=True))
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    tab_to(page, dialog.get_by_label("Name"))
    page.keyboard.type("south")
    tab_to(page, dialog.get_by_role("button", name="Add a follower", exact=True))
    page.keyboard.press("Enter")
    assert dialog.locator(".secret").inner_text().startswith("sl_")
    page.keyboard.press("Escape")
    page = at_leader.go("/replication/followers/south")
    dialog = open_dialog(page, "Remove")
    act = dialog.get_by_role("button", name="Remove")
    dialog.get_by_label("Type south to confirm").fill("south")
    assert act.is_disabled(), "a dry run comes first"
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.locator(".outcome")).to_contain_text("Dry run: done.")
    at_leader.expected = {404}  # the page of a follower that is gone
    act.click()
    expect(dialog.locator(".outcome")).to_contain_text("Remove: done.")
    assert "south" not in [f.name for f in leader.lake.followers.list()]
