"""The dashboard as a person uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from strandline.core.roles import Role
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake
from tests.browser.conftest import AXE, DESKTOP, PATIENCE_MILLISECONDS, Shown, Visitor, visit
from tests.browser.shown_lake import STRAY
from tests.conftest import missing
from tests.serve.conftest import API, Served, serving
from tests.serve.test_called_off import Held, hold_compaction
from tests.spark.lakes import create, numbers
from tests.waiting import eventually

expect.set_options(timeout=PATIENCE_MILLISECONDS)

PLACES = {
    "overview": "/",
    "datasets": "/datasets",
    "dataset": "/datasets/default.orders",
    "sinks": "/sinks",
    "sink": "/sinks/partner",
    "quarantined-rows": "/quarantine/rows",
    "drift": "/drift",
    "drift-run": "/drift/runs/1",
    "runs": "/runs",
    "run": "/runs/maintenance/1",
    "task": "/runs/tasks/1",
    "audit": "/audit",
    "tokens": "/tokens",
    "dataset-button": "/datasets/default.orders",
    "login": "/login",
    "error": "/sinks/nobody",
}


IN_THE_LIGHT = ("overview", "datasets", "sinks", "sink", "drift", "dataset-button", "login")


def figure(name: str) -> str:
    return f'#figures div:has(dt:text-is("{name}")) dd'


def cell(section: str, row: str, label: str) -> str:
    return f'#{section} tr:has-text("{row}") td[data-label="{label}"]'


# Of the lake that `shown_lake.fill` makes: place, where on the page, and what has to be read there.
READ = [
    ("/", cell("sinks", "partner", "Lag, rows"), r"^1,998$"),
    ("/", cell("sinks", "partner", "Lag, time"), r"^\d+ (s|min)"),
    ("/", cell("sinks", "partner", "Trend"), r"growing$"),
    ("/", cell("sinks", "warehouse", "Trend"), r"steady$"),
    ("/", cell("sealed", "default.clicks", "Sealed up to"), r"^2,430 of 2,490"),
    ("/", cell("sealed", "default.clicks", "Open blocks"), r"^1$"),
    ("/", cell("sealed", "default.payments", "Sealed up to"), r"^1,540(?! of)"),
    ("/", figure("Held by retention"), r"^640"),
    ("/", '#held tr:has-text("partner")', r"default\.orders ?640"),
    ("/datasets/default.orders", figure("Data files"), r"^2\d\d?\.\d KiB$"),
    ("/datasets/default.orders", figure("Small-file debt"), r"^1(?!\d)"),
    ("/datasets/default.orders", "#blocks tbody tr:nth-child(1)", r"^1,541 – 2,340 ?published ?800 ?orders-"),
    ("/datasets/default.orders", "#blocks tbody tr:nth-child(2)", r"^1 – 1,200 ?published ?1,200 ?orders-"),
    ("/datasets/default.clicks", "#blocks tbody tr:nth-child(1)", r"^2,431 – 2,490 ?reserved ?unknown ?clicks-"),
    ("/sinks/partner", figure("Lag, rows"), r"growing$"),
    ("/sinks/partner", cell("lanes", "all rows", "Watermark"), r"^none yet$"),
    ("/sinks/partner", cell("lanes", "all rows", "Quarantined"), r"^2$"),
    ("/sinks/partner", "#intents tbody td:nth-child(1)", r"^1 – 8"),
    ("/sinks/partner", "#intents tbody td:nth-child(2)", r"^8$"),
    ("/sinks/partner", "#errors", r"2 rows in quarantine"),
    ("/sinks/warehouse", cell("lanes", "all rows", "Watermark"), r"^2,340$"),
    ("/sinks/warehouse", "#intents", r"No intent is open"),
    ("/sinks/warehouse", "#errors", r"None\. The last delivery got through"),
    ("/drift/runs/2", "#found", r"Orphan files ?3"),
    ("/drift/runs/2", "#done", r"Orphan files quarantined or deleted ?3"),
]
README_BYTES_MAX = 150_000


def heading(page: Page) -> str:
    return page.locator("h1").inner_text()


def open_dialog(page: Page, label: str) -> Any:
    page.locator("main").get_by_role("button", name=label, exact=True).click()
    return page.get_by_role("dialog")


def test_the_pictures_of_the_readme_can_be_made_again(admin: Visitor) -> None:
    """`make screenshots` copies them. First of all: the other tests change what is shown."""
    for name in ("overview", "sink"):
        admin.go(PLACES[name])
        expect(admin.page.locator("#live")).to_contain_text("Live")
        expect(admin.page.locator("svg.chart").first).to_be_visible()
        assert admin.picture(f"readme-{name}", whole=False).stat().st_size < README_BYTES_MAX


def test_every_page_says_what_the_lake_has(admin: Visitor) -> None:
    """Before the tests that change it."""
    wrong, at = [], None
    for place, where, wanted in READ:
        if place != at:
            admin.go(place)
            at = place
        said = " ".join((admin.page.locator(where).text_content() or "").split())
        wrong += [] if re.search(wanted, said) else [(place, where, wanted, said)]
    assert wrong == []


def test_the_overview_answers_in_the_order_of_what_people_ask(admin: Visitor) -> None:
    page = admin.go("/")
    shown = page.eval_on_selector_all("main [id][data-live]", "found => found.map(one => one.id)")
    assert [one for one in shown if one != "dialogs"] == ["verdict", "figures", "sinks", "throughput", "sealed", "held"]


def test_a_stranger_is_asked_to_log_in_and_then_gets_the_page(visitor: Visitor, shown: Shown) -> None:
    visitor.expected = {401}
    page = visitor.go("/sinks/partner")
    assert heading(page) == "Log in"
    page.fill("#token", "sl_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not the secret of a valid token")
    page.fill("#token", shown.secrets[Role.READ])
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("partner")
    assert page.url.endswith("/sinks/partner")


def test_a_log_out_ends_the_session(visitor: Visitor, shown: Shown) -> None:
    visitor.log_in(shown.secrets[Role.WRITE])
    visitor.page.get_by_role("button", name="Log out").click()
    expect(visitor.page.get_by_role("status")).to_have_text("You are logged out.")
    visitor.expected = {401}
    assert heading(visitor.go("/")) == "Log in"


def test_a_reader_sees_no_buttons_and_is_refused_what_needs_an_admin(visitor: Visitor, shown: Shown) -> None:
    visitor.log_in(shown.secrets[Role.READ])
    page = visitor.go("/sinks/partner")
    assert page.locator("main button").count() == 0 and page.locator("dialog").count() == 0
    assert page.get_by_role("link", name="Audit").count() == 0
    visitor.expected = {403}
    page = visitor.go("/audit")
    assert "role" in heading(page) and "needs the role admin" in page.locator("main").inner_text()
    answer = page.request.post(f"{shown.url}/api/v1/sinks/partner/pause")
    assert answer.status == 403


def test_the_first_line_says_what_is_wrong_and_partial_is_not_clean(admin: Visitor) -> None:
    page = admin.go("/")
    said = page.locator("#verdict").inner_text()
    assert "refused 2 rows that wait in quarantine" in said and "could not check everything" in said
    assert "partial" in page.locator("#figures").inner_text()
    page = admin.go("/drift")
    assert "Partial." in page.locator("#verdict").inner_text()
    assert "clean" not in page.locator("#verdict").inner_text()
    assert "at least 1" in page.locator("#verdict").inner_text()
    assert "none found so far" in page.locator("#verdict").inner_text()


@pytest.mark.spark
def test_lag_falls_on_an_open_page_while_a_sink_delivers(admin: Visitor, shown: Shown, spark_started: object) -> None:
    lake, folder = shown.lake, shown.folder / "archive"
    create(lake, "readings", {"n": "long"})
    lake.append("readings", numbers(lake, 1, 30))
    lake.delivery.add("archive", "readings", "files", {"path": str(folder), "format": "jsonl"})
    page = admin.go("/sinks/archive")
    lag = page.locator("#figures dd").first
    expect(lag).to_have_text(re.compile(r"^30(?!\d)"))
    page.evaluate("window.kept = true")
    with Served(lake, shown.url, shown.secrets).as_role() as program:

        def deliver() -> dict[str, Any]:
            task = program.post(f"{API}/sinks/archive/tick", json={"dry_run": False}).json()["place"]
            eventually(lambda: program.get(task).json()["ended_at"], 300)
            result: dict[str, Any] = program.get(task).json()["result"]
            return result

        assert deliver()["rows"] == 30
        expect(lag).to_have_text(re.compile(r"^0(?!\d)"))
        lake.append("readings", numbers(lake, 31, 55))
        expect(lag).to_have_text(re.compile(r"^25(?!\d)"))
        assert deliver()["rows"] == 25
        expect(lag).to_have_text(re.compile(r"^0(?!\d)"))
    assert page.evaluate("window.kept"), "the page was not loaded again"
    delivered = [json.loads(line)["n"] for file in folder.rglob("*.jsonl") for line in file.open()]
    assert sorted(delivered) == list(range(1, 56))


@pytest.mark.parametrize("who", ["admin", "on_phone"])
def test_a_sink_is_paused_and_resumed(request: pytest.FixtureRequest, shown: Shown, who: str) -> None:
    admin: Visitor = request.getfixturevalue(who)
    page = admin.go("/sinks/warehouse")
    dialog = open_dialog(page, "Pause")
    assert "gets no more rows until it is resumed" in dialog.inner_text()
    dialog.get_by_role("button", name="Pause").click()
    expect(page.locator("#state")).to_have_text("paused")
    assert shown.lake.delivery.get("warehouse").state.value == "paused"
    open_dialog(page, "Resume").get_by_role("button", name="Resume").click()
    expect(page.locator("#state")).to_have_text("active")
    page = admin.go("/audit?event=sink.&trigger=page")
    told = page.locator("#events").inner_text()
    assert "sink.paused" in told and "sink.resumed" in told and "the admin" in told


def test_a_quarantined_row_is_replayed_and_another_discarded(admin: Visitor, shown: Shown) -> None:
    page = admin.go("/quarantine/rows")
    assert "amount must not be negative" in page.locator("#rows").inner_text()
    page.get_by_label("Choose row 2").check()
    dialog = open_dialog(page, "Replay")
    assert dialog.get_by_label("Rows").input_value() == "2"
    dialog.get_by_role("button", name="Replay").click()
    expect(dialog.locator(".outcome")).to_contain_text("Replay: done.")
    dialog.get_by_role("button", name="Close").click()
    page = admin.go("/quarantine/rows?sink=partner")
    assert "amount must not be negative" not in page.locator("#rows").inner_text()
    dialog = open_dialog(page, "Discard")
    act = dialog.get_by_role("button", name="Discard")
    assert act.is_disabled(), "what cannot be undone has to be confirmed"
    dialog.get_by_label("Type partner to confirm").fill("partner")
    assert act.is_disabled(), "after a dry run"
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.locator(".outcome")).to_contain_text("Dry run: done.")
    [left] = shown.lake.delivery.quarantined("partner")
    with page.expect_request(lambda r: r.url.endswith("/discard")) as sent:
        act.click()
    wanted = {"sink": "partner", "dry_run": False, "numbers": [int(left.row.seq)]}
    assert sent.value.post_data_json == wanted, "the rows that the dry run has shown, and none that came since"
    expect(dialog.locator(".outcome")).to_contain_text("Discard: done.")
    assert shown.lake.delivery.quarantined("partner") == []


def test_a_dry_run_of_the_reconciler_is_read_before_it_acts(admin: Visitor) -> None:
    page = admin.go("/drift")
    dialog = open_dialog(page, "Act on drift")
    act = dialog.get_by_role("button", name="Act on drift")
    assert act.is_disabled(), "a dry run comes first"
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.locator(".outcome")).to_contain_text("Dry run: done.")
    expect(dialog.locator(".outcome")).to_contain_text("Orphans")
    expect(act).to_be_enabled()
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator("#runs")).to_contain_text("the admin")
    newest = page.locator("#runs tbody tr").first
    assert "dry run" in newest.inner_text()
    newest.get_by_role("link").click()
    expect(page.locator("#found")).to_contain_text("Orphan files")
    assert STRAY in page.locator("#samples").inner_text()
    assert "Nothing: it was a dry run." in page.locator("#done").inner_text()


def test_a_dialog_goes_on_looking_while_the_server_does_not_answer(admin: Visitor) -> None:
    admin.expected = {503}
    page = admin.go("/drift")
    away = lambda route: route.fulfill(status=503, json={"detail": "the ledger does not answer"})  # noqa: E731
    page.route("**/reconciliation/runs/*", away)
    dialog = open_dialog(page, "Find drift")
    dialog.get_by_role("button", name="Find drift").click()
    expect(dialog.locator(".outcome .note")).to_contain_text("The server does not answer now")
    page.unroute("**/reconciliation/runs/*", away)
    expect(dialog.locator(".outcome .note").first).to_have_text("Find drift: done.")


def test_a_run_that_was_called_off_is_not_told_as_done(admin: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    hold_compaction(monkeypatch, held)
    dialog = open_dialog(admin.go("/datasets/default.clicks"), "Compact")
    dialog.get_by_role("button", name="Compact").click()
    assert held.reached.wait(60)
    with admin.page.expect_response(lambda r: r.url.endswith("/cancel")):
        dialog.get_by_role("button", name="Call off").click()
    held.let.set()
    expect(dialog.locator(".outcome .note")).to_have_text("it was called off")
    expect(dialog.locator(".outcome .note")).to_have_class("note warn")


def test_a_token_is_made_shown_once_and_revoked(admin: Visitor) -> None:
    page = admin.go("/tokens")
    dialog = open_dialog(page, "Create a token")
    dialog.get_by_label("Name").fill("visitor")
    dialog.get_by_role("button", name="Create a token").click()
    secret = dialog.locator(".secret").inner_text()
    assert secret.startswith("sl_")
    dialog.get_by_role("button", name="Close").click()
    page = admin.go("/tokens")
    assert secret not in page.content()
    page.get_by_role("button", name="Revoke visitor").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type visitor to confirm").fill("visitor")
    dialog.get_by_role("button", name="Revoke").click()
    expect(dialog.locator(".outcome")).to_contain_text("Revoke: done.")


def test_a_page_is_live_again_after_the_server_has_answered_with_an_error(admin: Visitor) -> None:
    admin.expected = {503}
    admin.page.clock.install()
    admin.page.route("**/live", lambda route: route.fulfill(status=503), times=1)
    page = admin.go("/")
    expect(page.locator("#live")).to_have_text("Not live: connecting again")
    with page.expect_request("**/live"):
        page.clock.run_for(30_000)
    expect(page.locator("#live")).to_contain_text("Live")


def test_what_the_api_refuses_is_said_with_what_to_do(admin: Visitor) -> None:
    admin.expected = {409}
    page = admin.go("/sinks")
    dialog = open_dialog(page, "Add a sink")
    dialog.get_by_label("Name").fill("partner")
    dialog.get_by_label("Options").fill("path=/nowhere/else")
    dialog.get_by_role("button", name="Add a sink").click()
    expect(dialog.locator(".outcome .note.bad")).to_be_visible()


def test_a_dialog_is_opened_used_and_closed_with_the_keyboard(admin: Visitor) -> None:
    page = admin.go("/sinks/warehouse")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    button = page.locator("main").get_by_role("button", name="Deliver again")
    tab_to(page, button)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Deliver again")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    for label, state in (("Pause", "paused"), ("Resume", "active")):
        page.reload()
        tab_to(page, page.locator("main").get_by_role("button", name=label, exact=True))
        page.keyboard.press("Enter")
        tab_to(page, page.get_by_role("dialog").get_by_role("button", name=label, exact=True))
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text(state)


def tab_to(page: Page, wanted: Locator) -> None:
    for _ in range(60):
        if wanted.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError("no number of tabs leads there")


def test_every_page_fits_its_window_and_has_no_serious_accessibility_fault(admin: Visitor, on_phone: Visitor) -> None:
    """Faults that axe-core finds are looked for on every page in the dark, and in the light where other elements have
    colours of their own: in charts, a table with badges, a dialog and a form."""
    found = []
    admin.expected = on_phone.expected = {404}
    for visitor, kind in ((admin, "desktop-light"), (on_phone, "phone-dark")):
        for name, place in PLACES.items():
            page = visitor.go(place)
            if "button" in name:
                page.locator("main").get_by_role("button", name="Purge rows", exact=True).click()
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            found += [(name, kind, f"{wide} pixels too wide")] if wide > 0 else []
            if kind == "phone-dark" or name in IN_THE_LIGHT:
                found += [(name, kind, *fault) for fault in faults(page)]
            visitor.picture(f"{name}-{kind}")
    assert found == []


def faults(page: Page) -> list[tuple[str, str]]:
    """Serious ones, by axe-core. Run through the debugger: the page's own policy allows no script but ours."""
    if not AXE.is_file():
        missing("axe-core is not there; scripts/test_parts.sh fetches it")
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (v["id"], v["nodes"][0]["html"][:200]) for v in found["violations"] if v["impact"] in ("serious", "critical")
    ]


@pytest.fixture
def empty_lake(tmp_path: Path) -> Iterator[tuple[Lake, str]]:
    with init_lake(tmp_path):
        pass
    with open_lake(tmp_path / "strandline.toml") as lake, serving(lake) as url:
        yield lake, url


def test_an_empty_lake_says_what_to_do_first(browser: Browser, empty_lake: tuple[Lake, str]) -> None:
    lake, url = empty_lake
    secret = lake.receiver.create_token("first", role=Role.ADMIN)[1]
    for visitor in visit(browser, url, viewport=DESKTOP):
        visitor.log_in(secret)
        page = visitor.go("/")
        assert "Create a dataset first" in page.locator("#verdict").inner_text()
        assert "unknown" in page.locator("#figures").inner_text(), "drift that nobody looked for is not zero"
        visitor.picture("overview-empty")
        dialog = open_dialog(page, "Create a dataset")
        dialog.get_by_label("Name").fill("events")
        dialog.get_by_label("Columns").fill("id long required\ntext string")
        dialog.get_by_role("button", name="Create a dataset").click()
        expect(dialog.locator(".outcome")).to_contain_text("done")
        dialog.get_by_role("button", name="Close").click()
        page = visitor.go("/datasets/events")
        assert "No rows yet." in page.locator("#blocks").inner_text()
        for place in ("/datasets", "/sinks", "/quarantine/rows", "/drift", "/runs", "/audit"):
            assert visitor.go(place).locator("h1").count() == 1
