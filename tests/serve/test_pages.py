"""The dashboard without a browser: who sees what, forms and cookies, static files, live events, and its pure parts."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request
from starlette.types import Message

from strandline.core.delivery_types import SinkId
from strandline.core.records.reconcile_records import Asked, FindingKind, StorageKind, SweptState
from strandline.core.roles import Role
from strandline.core.types import Seq
from strandline.deliver.facade import Delivery
from strandline.deliver.quarantine.replay import Replay, ReplayedRow, ReplayReport
from strandline.lake import Lake
from strandline.ledger import tasks
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.retention_holds import Hold
from strandline.ledger.reconcile import quarantined_files, reconcile_runs
from strandline.ledger.reconcile.quarantined_files import NewSwept
from strandline.serve.app import create_app
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import Access, Needs
from strandline.serve.auth.sessions import COOKIE
from strandline.serve.pages import actions, live, spelling
from strandline.serve.pages.charts import Line, Point, line_chart, share_bar, sparkline, thinned
from strandline.serve.pages.history import APART_SECONDS_MIN, GAP_SECONDS, FigureHistory, HistorySample, SinkKey
from strandline.serve.pages.login import _own_path
from strandline.serve.pages.render import _environment
from strandline.serve.pages.views import held_views, place_of
from strandline.serve.problems import Problem
from strandline.serve.server import serve_lake
from strandline.status.documents import lake_documents
from strandline.status.maintenance import DatasetMaintenance, MaintenanceStatus
from strandline.status.problems.status_problem import Severity, StatusProblem, Subject
from tests.browser.shown_lake import fill
from tests.serve.conftest import API, TRUST, Served, serving
from tests.serve.test_dry_runs import add_sink
from tests.serve.test_roles import routes
from tests.waiting import eventually

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWN = SinkKey("d", "s")
PAGES = ("/", "/datasets", "/sinks", "/quarantine/rows", "/drift", "/runs", "/audit", "/tokens")


@pytest.fixture
def browser(served: Served) -> httpx.Client:
    """Logged in with the form, as an admin."""
    client = httpx.Client(base_url=served.url, timeout=60, verify=TRUST)
    assert log_in(client, served.secrets[Role.ADMIN]).status_code == 303
    return client


def log_in(client: httpx.Client, secret: str, then: str = "/", **headers: str) -> httpx.Response:
    return client.post("/login", data={"token": secret, "next": then}, headers=headers)


def csrf_of(client: httpx.Client) -> str:
    found = re.search(r'data-csrf="([^"]+)"', client.get("/").text)
    assert found is not None
    return found[1]


# Who sees what.


def test_every_page_is_shown_to_an_admin_and_loads_only_our_own_files(browser: httpx.Client, dataset: str) -> None:
    for path in (*PAGES, f"/datasets/{dataset}"):
        shown = browser.get(path)
        assert shown.status_code == 200, path
        assert shown.headers["content-type"] == "text/html; charset=utf-8"
        assert "'unsafe-inline'" not in shown.headers["content-security-policy"]
        assert all(url.startswith("/") for url in re.findall(r'(?:src|href|action)="([^"#?][^"]*)"', shown.text)), path
        assert " style=" not in shown.text and "<style" not in shown.text and not re.search(r"\son\w+=", shown.text)


def test_a_stranger_gets_the_page_to_log_in_at_the_same_address(served: Served) -> None:
    with served.client() as nobody:
        shown = nobody.get("/sinks?page_number=2")
        assert shown.status_code == 401 and 'value="/sinks?page_number=2"' in shown.text
        assert nobody.get("/nowhere", headers={"Accept": "text/html"}).status_code == 404
        assert nobody.get("/nowhere").headers["content-type"] == "application/problem+json"


def test_a_limited_token_sees_only_its_datasets_on_every_page(served: Served, dataset: str, tmp_path: Path) -> None:
    with served.as_role() as admin:
        admin.post(f"{API}/datasets", json={"name": "own", "columns": [{"name": "id", "type": "long"}]})
        body = {"name": "hidden-sink", "dataset": dataset, "kind": "files", "options": {"path": str(tmp_path / "out")}}
        assert admin.post(f"{API}/sinks", json=body).status_code == 201
    with served.client(served.token("limited", Role.READ, only=["default.own"])) as client:
        for path in ("/", "/datasets", "/sinks", "/quarantine/rows", "/drift", "/runs"):
            shown = client.get(path)
            assert shown.status_code == 200 and dataset not in shown.text and "hidden-sink" not in shown.text, path
        assert client.get(f"/datasets/{dataset}").status_code == 404
        assert client.get("/sinks/hidden-sink").status_code == 404
        assert client.get("/audit").status_code == 403


def test_a_dataset_whose_table_somebody_dropped_is_a_problem_and_keeps_its_page(
    served: Served, admin: httpx.Client, browser: httpx.Client, dataset: str
) -> None:
    served.lake.catalog.drop(dataset)
    said = "the catalog has no table of this name"

    def problems() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = admin.get(f"{API}/status").json()["problems"]
        return found

    eventually(lambda: [p for p in problems() if p["dataset"] == dataset])
    [problem] = problems()
    assert (problem["severity"], problem["name"]) == ("error", dataset) and said in problem["reason"]
    assert said in browser.get("/").text and said in browser.get("/datasets").text
    shown = browser.get(f"/datasets/{dataset}")
    assert shown.status_code == 200 and said in shown.text and "No rows yet." in shown.text
    assert browser.get("/datasets/default.never").status_code == 404
    assert admin.delete(f"{API}/datasets/{dataset}").status_code == 200, "the way on"
    assert browser.get(f"/datasets/{dataset}").status_code == 404


def test_null_says_none_of_a_problem_and_unknown_of_a_figure() -> None:
    macros = _environment().get_template("macros.html").module
    shown = re.sub(r"<[^>]*>|\s", "", str(macros.facts({"problem": None, "rows": None, "files": 0})))  # type: ignore[attr-defined]
    assert shown == "ProblemnoneRowsunknownFiles0"


def test_a_list_in_one_line_says_how_much_of_it_is_left_out() -> None:
    macros: Any = _environment().get_template("macros.html").module
    shown = " ".join(re.sub(r"<[^>]*>", "", str(macros.brief({"numbers": list(range(1, 1_014))}))).split())
    assert shown == "numbers 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 1,003 more"
    assert "more" not in str(macros.brief({"numbers": list(range(1, 11))}))


def test_of_many_sinks_that_hold_retention_the_worst_are_shown_and_how_many_there_are(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = tuple(Hold(SinkId(n), f"s{n:02}", n, AT, Seq(9)) for n in range(1, 21))
    nobody_knows = Hold(SinkId(99), "unknown-one", None, AT, Seq(9))
    care = MaintenanceStatus({}, (), (), (DatasetMaintenance("default.d", None, (*holds, nobody_knows), ()),))
    found = held_views(replace(lake.status(), maintenance=care))
    assert [h.holder for h in found[:3]] == ["unknown-one", "s20", "s19"] and len(found) == 21
    monkeypatch.setattr(Lake, "status", lambda self, status=lake.status(): replace(status, maintenance=care))
    secret = lake.receiver.create_token("reader", role=Role.READ)[1]
    with serving(lake) as url:
        shown = httpx.get(url, headers={"Authorization": f"Bearer {secret}"}, timeout=60).text
    part = shown.partition('id="held"')[2].partition("</section>")[0]
    assert part.count("<tr><td") == 8 and "8 of 21" in part and "s13" not in part


def test_names_and_reasons_cannot_write_into_a_page(served: Served, browser: httpx.Client) -> None:
    evil = "<img src=x onerror=alert(1)>"
    served.token(evil, Role.READ)
    shown = browser.get("/tokens").text
    assert evil not in shown and "&lt;img" in shown
    assert evil not in browser.get("/audit", params={"actor": evil}).text
    unknown = browser.get("/audit", params={"event": evil})
    assert unknown.status_code == 200 and "No event matches." in unknown.text and evil not in unknown.text
    assert spelling.prose(f"`{evil}` {evil}") == spelling.prose(f"`{evil}` {evil}").__html__()
    assert "<img" not in spelling.prose(f"`{evil}` {evil}") and "<img" not in sparkline(
        [Point(0, 1), Point(1, 2)], evil
    )


# Forms and cookies.


def test_the_audit_page_is_filtered_by_who_and_by_how(
    served: Served, browser: httpx.Client, dataset: str, tmp_path: Path
) -> None:
    def shown(**filters: str) -> set[str]:
        return set(re.findall(r"<code>(sink\.\w+)</code>", browser.get("/audit", params=filters).text))

    with served.as_role() as admin, served.client(served.token("ann", Role.ADMIN)) as ann:
        add_sink(admin, tmp_path / "out")
        assert ann.post(f"{API}/sinks/partner/pause").status_code == 200
    resumed = browser.post(f"{API}/sinks/partner/resume", headers={"X-CSRF-Token": csrf_of(browser)})
    assert resumed.status_code == 200
    assert shown() == shown(event="sink.") == {"sink.added", "sink.paused", "sink.resumed"}
    assert shown(actor="ann") == {"sink.paused"} and shown(trigger="page") == {"sink.resumed"}
    assert shown(actor="the admin", trigger="api") == {"sink.added"}
    assert shown(actor="ann", trigger="page") == shown(actor="nobody") == set()
    unknown = browser.get("/audit", params={"trigger": "pigeon<b>"}).text
    assert (
        "Nothing comes through “pigeon&lt;b&gt;”." in unknown and "schedule" in unknown and "<code>sink." not in unknown
    )


def test_a_wrong_secret_is_answered_on_the_page_and_attempts_are_limited(served: Served) -> None:
    with httpx.Client(base_url=served.url, timeout=60, verify=TRUST) as client:
        answers = [log_in(client, "sl_no") for _ in range(12)]
        assert answers[0].status_code == 401 and COOKIE not in answers[0].cookies
        assert answers[-1].status_code == 429 and int(answers[-1].headers["retry-after"]) > 0
        assert "too many attempts" in answers[-1].text.lower()


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_site_can_neither_log_a_browser_in_nor_out(
    served: Served, browser: httpx.Client, headers: dict[str, str]
) -> None:
    with httpx.Client(base_url=served.url, timeout=60, verify=TRUST) as other:
        assert log_in(other, served.secrets[Role.ADMIN], **headers).status_code == 403
    assert browser.post("/logout", data={"csrf": csrf_of(browser)}, headers=headers).status_code == 403
    assert browser.get("/").status_code == 200


def test_logging_out_needs_the_token_of_the_session_and_ends_it_everywhere(browser: httpx.Client) -> None:
    cookie = browser.cookies[COOKIE]
    assert browser.post("/logout", data={"csrf": "made up"}).status_code == 403
    assert browser.get("/").status_code == 200
    out = browser.post("/logout", data={"csrf": csrf_of(browser)})
    assert (out.status_code, out.headers["location"]) == (303, "/login?out=true")
    assert browser.get("/", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 401


@pytest.mark.parametrize(
    ("given", "leads_to"),
    [
        ("/sinks/a?x=1", "/sinks/a?x=1"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("/logout", "/"),
        ("/api/v1/status", "/"),
        ("", "/"),
    ],
)
def test_a_log_in_leads_only_to_our_own_pages(given: str, leads_to: str) -> None:
    assert _own_path(given) == leads_to


# Buttons.


def every_action() -> list[actions.PageAction]:
    return [
        *actions.sink_actions("x", "active"), *actions.sink_actions("x", "paused"), *actions.dataset_actions("x"),
        *actions.quarantined_row_actions("x"), *actions.quarantined_file_actions(), *actions.reconcile_actions(),
        actions.add_sink(["x"], ["files"]), actions.create_dataset(),
        actions.create_token([]), actions.revoke_token("x"), actions.add_follower([]), actions.remove_follower("x"),
        actions.remove_consumer("x", "x"),
        actions.call_off("tasks/x"), actions.call_off("maintenance/runs/x"), actions.call_off("reconciliation/runs/x"),
    ]  # fmt: skip


@pytest.fixture
def much_to_do(served: Served, tmp_path: Path) -> list[str]:
    """A lake in which everything can be done, and the pages that say so."""
    lake = served.lake
    fill(lake, tmp_path / "shown")
    with served.as_role() as admin:
        assert admin.post(f"{API}/replication/followers", json={"name": "site"}).status_code == 201
    lake.consumers.begin(lake.dataset("orders"), "billing", None)
    swept = [NewSwept(FindingKind.ORPHAN, None, "data/1", "aside/1", 5, None)]
    assert reconcile_runs.take_lease(lake.ledger, seconds=600) is not None
    with lake.ledger.write() as connection:
        again = reconcile_runs.start(connection, Asked(act=True), StorageKind.LOCAL)
        quarantined_files.move(connection, quarantined_files.begin(connection, again, swept), SweptState.HELD)
        new = runs.NewRun(lake.dataset("orders").id, runs.MaintenanceKind.COMPACT, "node-1")
        run = runs.begin(connection, new, lease_seconds=600)
        task = tasks.begin(connection, "tick", "warehouse", "node-1", lease_seconds=600)[0].id
    under_way = [f"/drift/runs/{again}", f"/runs/maintenance/{run}", f"/runs/tasks/{task}"]
    of_one = ["/datasets/orders", "/sinks/warehouse", "/sinks/ledger-export", "/replication/followers/site"]
    return [*PAGES, "/replication", "/quarantine/rows?sink=partner", *of_one, *under_way]


def offered(page: str) -> set[tuple[str, str]]:
    """The requests that the buttons of a page can send."""
    opened = set(re.findall(r'data-opens="([^"]+)"', page))
    dialogs = re.findall(r'<dialog id="([^"]+)".*?data-method="(\w+)" data-path="([^"]+)"', page, re.DOTALL)
    assert {name for name, _, _ in dialogs} >= opened, "a button that opens nothing"
    return {(method, html.unescape(path).partition("?")[0]) for name, method, path in dialogs if name in opened}


def test_everything_that_the_api_can_change_has_a_button(
    served: Served, browser: httpx.Client, much_to_do: list[str]
) -> None:
    wanted = {
        (method, path)
        for path, method, declared in routes(served.lake)
        if isinstance(declared, Needs)
        and method != "GET"
        and path.startswith(API)
        and not path.endswith("/session")
        and declared.role is not Role.REPLICATE  # what followers say, and no person
    }
    sent = {found for path in much_to_do for found in offered(browser.get(path).text)}
    forms = {route: re.compile(re.sub(r"\{[^}]+\}", "[^/]+", route[1])) for route in wanted}
    without = {r for r, form in forms.items() if not any(r[0] == m and form.fullmatch(at) for m, at in sent)}
    assert without == set(), "no page has a button for it"
    unknown = {(m, at) for m, at in sent if not any(r[0] == m and form.fullmatch(at) for r, form in forms.items())}
    assert unknown == set(), "a button that the API does not know"


def has_dry_run(description: dict[str, Any], operation: dict[str, Any]) -> bool:
    """Whether a request of the route can say `dry_run`."""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    named = description["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], body)
    return "dry_run" in named.get("properties", {}) or any(
        p["name"] == "dry_run" for p in operation.get("parameters", ())
    )


def test_every_route_with_a_dry_run_has_a_button_for_it(lake: Lake) -> None:
    app = create_app(lake)
    app.state.context.close()
    description = app.openapi()
    can = {
        f"{method.upper()} {re.sub(r'{[^}]+}', 'x', path)}"
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
        if has_dry_run(description, operation)
    }
    assert {"PATCH /api/v1/datasets/x", "POST /api/v1/sinks/x/recover", "DELETE /api/v1/sinks/x"} <= can
    for action in every_action():
        is_one = "dry_run=true" in action.path
        assert (action.dry_path is not None) == (action.route in can and not is_one), action.id
        if action.dry_path is not None:
            assert action.dry_body.get("dry_run") or "dry_run=true" in action.dry_path, action.id
            assert action.body.get("dry_run") is not True, action.id


def test_what_cannot_be_undone_has_a_dry_run_before() -> None:
    for action in every_action():
        words = " ".join([action.says, *(f"{f.label} {f.hint}" for f in action.fields)])
        assert action.cannot_be_undone or not (action.method == "DELETE" or "cannot be" in words), action.id
        is_told_whole = action.id == "revoke-x" and action.confirm  # there is nothing to find out
        assert not action.cannot_be_undone or action.dry_path or is_told_whole, action.id
        assert {*action.only_if} <= {f.name for f in action.fields}, action.id


def test_the_button_that_removes_a_sink_says_that_another_at_the_same_place_continues() -> None:
    [remove] = [a for a in actions.sink_actions("partner", "active") if a.id == "remove"]
    assert "same place" in remove.says and "continues" in remove.says and "anew" not in remove.says


def test_a_task_that_is_done_and_whose_result_is_bad_does_not_look_well(
    served: Served, browser: httpx.Client, dataset: str, tmp_path: Path
) -> None:
    with served.as_role() as admin:
        body = {"name": "partner", "dataset": dataset, "kind": "files", "options": {"path": str(tmp_path / "out")}}
        assert admin.post(f"{API}/sinks", json=body).status_code == 201
        assert admin.post(f"{API}/sinks/partner/pause").status_code == 200
        place = admin.post(f"{API}/sinks/partner/tick", json={}).json()["place"]
        eventually(lambda: admin.get(place).json()["outcome"])
        found = admin.get(place).json()
    assert (found["outcome"], found["attention"]) == ("done", "partner is paused, and got nothing")
    for path in ("/runs", f"/runs/tasks/{found['task']}", "/sinks/partner"):
        shown = browser.get(path).text
        assert "needs attention" in shown and ">done<" not in shown, path
    assert "partner is paused, and got nothing" in browser.get("/runs").text


def test_a_result_that_is_too_large_to_be_stored_still_says_what_is_bad_in_it(
    served: Served, browser: httpx.Client, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "422: " + "no customer of this name is known " * 3
    refused = tuple(ReplayedRow(Seq(n), Replay.REFUSED, why) for n in range(1, 10_001))
    monkeypatch.setattr(Delivery, "replay", lambda *given, **more: ReplayReport("partner", refused))
    with served.as_role() as admin:
        add_sink(admin, tmp_path / "out")
        begun = admin.post(f"{API}/quarantined-rows/replay", json={"sink": "partner", "all": True}).json()
        eventually(lambda: admin.get(begun["place"]).json()["outcome"])
        found = admin.get(begun["place"]).json()
    said = f"10,000 of 10,000 rows not delivered: {why}"
    assert (found["outcome"], found["attention"]) == ("done", said)
    assert "omitted" in found["result"] and found["result"]["replayed"] == 0, "its numbers are stored"
    assert "needs attention" in browser.get(f"/runs/tasks/{begun['task']}").text
    assert lake_documents.task(served.lake.tasks.get(begun["task"]))["attention"] == said


# Files and events.


def test_static_files_are_kept_for_a_year_by_their_hash_and_nothing_else_is_served(browser: httpx.Client) -> None:
    [sheet] = re.findall(r'href="(/static/strandline\.css[^"]+)"', browser.get("/").text)
    with httpx.Client(base_url=browser.base_url) as nobody:
        first = nobody.get(sheet)
        assert first.status_code == 200 and "immutable" in first.headers["cache-control"]
        assert nobody.get(sheet, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
        assert "immutable" not in nobody.get("/static/strandline.css?v=old").headers["cache-control"]
        for path in ("/static/..%2frender.py", "/static/render.py", "/static/", "/static/%2e%2e/templates/base.html"):
            assert nobody.get(path).status_code == 404, path


def test_an_open_page_is_told_of_a_change_and_its_stream_ends_with_the_session(
    served: Served, browser: httpx.Client
) -> None:
    with browser.stream("GET", "/live") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in stream.iter_lines() if line.startswith("event:"))
        assert next(lines) == "event: changed"
        with served.as_role() as admin:
            admin.post(f"{API}/datasets", json={"name": "new", "columns": [{"name": "id", "type": "long"}]})
        assert next(lines) == "event: changed"
        browser.cookies.delete(COOKIE)
        for token in served.lake.receiver.list_tokens():
            if token.role is Role.ADMIN:
                served.lake.receiver.revoke_token(token.name)
        assert next(line for line in lines if line != "event: changed" and line != "event: beat") == "event: ended"


@pytest.mark.parametrize("settings", [{"serve": {"refresh_seconds": 3600}}])
def test_a_stream_beats_and_ends_with_its_token_also_where_the_lake_is_read_once_an_hour(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "BEAT_SECONDS", 0.1)
    headers = {"Authorization": f"Bearer {served.token('brief', Role.READ)}"}
    with httpx.stream("GET", f"{served.url}/live", headers=headers, timeout=60) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("event:"))
        assert [next(lines), next(lines)] == ["event: changed", "event: beat"]
        served.lake.receiver.revoke_token("brief")
        assert next(line for line in lines if line != "event: beat") == "event: ended"


@pytest.mark.parametrize("settings", [{"serve": {"requests_at_once_max": 1}}])
def test_open_pages_take_no_place_of_requests_and_one_token_cannot_take_all_streams(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAMS_OF_TOKEN_MAX", 2)
    with served.as_role(Role.READ) as reader, served.as_role() as other, ExitStack() as stack:
        reader.event_hooks["response"], other.event_hooks["response"] = [], []  # they would read to the end

        kept: list[Iterator[str]] = []

        def opened(client: httpx.Client) -> int:
            stream = stack.enter_context(client.stream("GET", "/live"))
            kept.append(stream.iter_lines())  # a stream that nobody reads any more is closed
            next(kept[-1])
            return stream.status_code

        assert [opened(reader) for _ in range(3)] == [200, 200, 429]
        assert opened(other) == 200 and other.get(f"{API}/session").status_code == 200


def test_pages_that_are_opened_at_the_same_moment_count_each_other(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS_OF_TOKEN_MAX", 1)
    app = create_app(lake)
    caller = Caller(lake.receiver.create_token("reader", role=Role.READ)[0])
    access = Access(Request({"type": "http", "app": app, "headers": []}), app.state.context, caller)

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def nobody(_message: Message) -> None:
        pass

    async def open_pages() -> None:
        first = await live.live(access)  # nothing is sent yet
        with pytest.raises(Problem):
            await live.live(access)
        await first({"type": "http"}, gone, nobody)
        await live.live(access)

    asyncio.run(open_pages())
    app.state.context.close()


def test_a_server_that_stops_does_not_wait_for_open_pages(lake: Lake) -> None:
    secret = lake.receiver.create_token("reader", role=Role.READ)[1]
    stopping, at = threading.Event(), list[str]()
    listening = threading.Event()

    def told(url: str) -> None:
        at.append(url)
        listening.set()

    thread = threading.Thread(target=lambda: serve_lake(lake, stopping, port=0, on_listening=told), daemon=True)
    thread.start()
    assert listening.wait(60)
    with httpx.stream("GET", f"{at[0]}/live", headers={"Authorization": f"Bearer {secret}"}, timeout=60) as stream:
        lines = stream.iter_lines()
        assert next(lines)
        stopping.set()
        assert list(lines) is not None  # it ends, and not by an error
    thread.join(60)
    assert not thread.is_alive()


# The parts that only compute.


def sample(second: float, sequence: int = 0, **delivered: int | None) -> HistorySample:
    by_sink = {SinkKey("d", name): rows for name, rows in delivered.items()}
    return HistorySample(AT + timedelta(seconds=second), sequence, {OWN: sequence}, {OWN: 1.0}, by_sink)


def test_rates_come_from_neighbouring_samples_and_a_gap_has_none() -> None:
    history = FigureHistory()
    for second, rows, out in ((0, 0, 0), (10, 100, 50), (20, 300, 20), (20 + GAP_SECONDS + 1, 900, 900)):
        history.add(sample(second, rows, s=out))
    assert [p.value for p in history.rows_in()] == [10.0, 20.0, None]
    assert [p.value for p in history.rows_out([OWN])] == [5.0, None, None], "a counter that went back has no rate"
    assert None in [p.value for p in history.lag_rows(OWN)], "nobody looked in between"
    assert [p.value for p in history.rows_out([OWN, SinkKey("d", "other")])] == [None, None, None]
    assert not any(p.value for p in history.lag_rows(SinkKey("e", "s"))), "another dataset had a sink of the same name"
    assert history.since == AT


def test_samples_are_bounded_and_not_too_close() -> None:
    history = FigureHistory(samples_max=3)
    for n in range(10):
        history.add(sample(n * APART_SECONDS_MIN, n))
        history.add(sample(n * APART_SECONDS_MIN + 0.1, n))
    assert [p.value for p in history.lag_rows(OWN)] == [7, 8, 9]


def test_a_line_has_a_gap_where_nothing_is_known_and_no_chart_is_drawn_of_nothing() -> None:
    points = [Point(0, 1), Point(1, 2), Point(2, None), Point(3, 4), Point(4, 0)]
    drawn = line_chart([Line("in", "in", points)], "In", start="12:00", end="12:01 UTC")
    assert drawn.count('class="line"') == 2 and 'role="img"' in drawn and "12:01 UTC" in drawn
    assert sparkline([Point(0, 1), Point(1, None)], "x") == "" == line_chart([], "x", start="", end="")
    assert sparkline([Point(0, 0), Point(1, 0)], "x").count("<path") == 1, "zero is drawn; it is not unknown"
    assert 'width="50"' in share_bar(1, 2, "half") and 'class="full"' in share_bar(0, 0, "nothing to do")


def test_a_long_history_is_thinned_to_its_peaks_and_keeps_its_gaps() -> None:
    points = [Point(n, None if n == 13 else n % 7) for n in range(100)]
    shown = thinned(points, 34)
    assert [(p.at, p.value) for p in shown[:3]] == [(2, 2), (5, 5), (8, 6)] and shown[-1] == points[-1]
    assert len(shown) == 34 and [n for n, p in enumerate(shown) if p.value is None] == [4]
    assert thinned(points, 100) == points


def test_figures_are_short_and_moments_relative() -> None:
    assert [spelling.short_number(v) for v in (0, 7, 999, 1234, 5_000_000, 0.25)] == [
        "0",
        "7",
        "999",
        "1.23 k",
        "5 M",
        "0.25",
    ]
    assert spelling.ago(AT - timedelta(seconds=61), AT) == "1 min 1 s ago"
    assert spelling.ago("2026-03-01T14:00:00Z", AT) == spelling.due("2026-03-01T14:00:00Z", AT) == "in 2 h"
    assert spelling.due(AT - timedelta(hours=3), AT) == spelling.due(AT, AT) == "due now"


@pytest.mark.parametrize(
    ("subject", "leads_to"),
    [
        (Subject.DATASET, "/datasets/a%2Fb"),
        (Subject.SINK, "/sinks/a%2Fb"),
        (Subject.QUARANTINE, "/quarantine/rows?sink=a%2Fb"),
        (Subject.RECONCILER, "/drift"),
        (Subject.LAKE, None),
    ],
)
def test_a_problem_leads_to_the_page_where_something_can_be_done(subject: Subject, leads_to: str | None) -> None:
    place = place_of(StatusProblem(Severity.ERROR, subject, "a/b", "d", "it is so"))
    assert (None if place is None else place[0]) == leads_to


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sink a is stopped: no", "Sink a is stopped: no."),
        ("default.a: it was rolled back", "default.a: it was rolled back."),
        ("`strandline status` tells more", "`strandline status` tells more."),
        ("look at it. There may be more.", "Look at it. There may be more."),
    ],
)
def test_a_reason_is_a_sentence_that_leaves_names_as_they_are(text: str, said: str) -> None:
    assert spelling.sentence(text) == said
