"""A PostgreSQL ledger that goes away under the API, and comes back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.core.roles import Role
from strandline.lake import open_lake
from strandline.lake_admin import init_lake
from strandline.ledger.reconcile import reconcile_runs
from strandline.serve import context, health, snapshot
from strandline.serve.auth.sessions import COOKIE
from tests.campaign import scaled
from tests.conftest import MakeHome
from tests.serve.conftest import API, COLUMNS, Gate, Served, serving
from tests.serve.test_daemon import LOOPS
from tests.served_process import server_process
from tests.servers import Postgres, Proxy, Toxiproxy
from tests.waiting import eventually

LEASE_SECONDS = 1
AWAY_SECONDS = scaled(LEASE_SECONDS, 60)


@pytest.fixture
def proxy(postgres_server: Postgres, toxiproxy: Toxiproxy) -> Proxy:
    return toxiproxy.proxy_to(postgres_server.port)


@pytest.fixture
def home(tmp_path: Path, postgres_server: Postgres, proxy: Proxy, make_home: MakeHome) -> Path:
    """Of a lake with short leases."""
    url = postgres_server.create_database().replace(f":{postgres_server.port}/", f":{proxy.port}/")
    short = {"lease_seconds": LEASE_SECONDS}
    make_home(tmp_path, {"ledger": {"url": url}, "reconcile": short, "ingest": short, "deliver": short})
    init_lake(tmp_path).close()
    return tmp_path


@pytest.fixture
def over_postgres(home: Path) -> Iterator[Served]:
    with open_lake(home) as lake:
        secrets = {role: lake.receiver.create_token(f"the {role}", role=role)[1] for role in Role}
        with serving(lake) as at:
            yield Served(lake, at, secrets)


def test_while_the_ledger_is_away_clients_are_told_to_come_again_and_then_it_works_by_itself(
    over_postgres: Served, proxy: Proxy
) -> None:
    with over_postgres.as_role() as admin, over_postgres.client() as nobody:
        assert admin.post(f"{API}/datasets", json={"name": "events", "columns": COLUMNS}).status_code == 201
        assert admin.get(f"{API}/status").status_code == nobody.get("/readyz").status_code == 200
        proxy.enable(False)
        for method, path in (
            ("GET", f"{API}/datasets"),
            ("GET", f"{API}/datasets/events/seal"),
            ("GET", f"{API}/audit"),
            ("POST", f"{API}/sinks/nosuch/pause"),
            ("DELETE", f"{API}/datasets/events"),
            ("POST", f"{API}/reconciliation/trigger"),
        ):
            answer = admin.request(method, path)
            problem = answer.json()
            assert (answer.status_code, problem["retryable"]) == (503, True), f"{method} {path}: {answer.text}"
            assert int(answer.headers["retry-after"]) > 0
        assert nobody.get("/healthz").status_code == 200
        eventually(lambda: nobody.get("/readyz").status_code == 503)  # one look is shown for a second
        away = nobody.get("/readyz")
        assert away.status_code == 503 and "retry-after" in away.headers and "127.0.0.1" not in away.text
        log_in = nobody.post(f"{API}/session", json={"token": over_postgres.secrets[Role.READ]})
        assert (log_in.status_code, log_in.json()["type"]) == (503, "urn:strandline:problem:ledger-away")
        assert "127.0.0.1" not in log_in.text, "whom nobody knows is told no address"
        eventually(lambda: admin.get(f"{API}/status").status_code == 503)  # the last reading is shown for a while
        proxy.enable(True)
        assert admin.get(f"{API}/datasets/events/seal").status_code == 200
        assert admin.delete(f"{API}/datasets/events").status_code == 200
        eventually(lambda: nobody.get("/readyz").status_code == 200)
        assert admin.get(f"{API}/status").json()["datasets"] == []


def go_silent(proxy: Proxy) -> None:
    """It takes what is sent to it, and answers nothing."""
    proxy.toxic("timeout", timeout=0)


def come_back(proxy: Proxy) -> None:
    proxy.enable(False)  # what was sent meanwhile is never answered
    proxy.heal()


def test_a_silent_ledger_keeps_nobody_waiting_and_then_it_works_by_itself(
    over_postgres: Served, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with over_postgres.as_role() as admin, over_postgres.client() as nobody:
        assert admin.get(f"{API}/status").status_code == nobody.get("/readyz").status_code == 200
        with monkeypatch.context() as patched:
            patched.setattr(health, "CHECK_SECONDS_MAX", 0.3)
            patched.setattr(context, "LEDGER_SECONDS_MAX", 0.3)
            patched.setattr(snapshot, "READING_SECONDS_MAX", 0.3)
            go_silent(proxy)
            eventually(lambda: nobody.get("/readyz").status_code == 503)  # one look is shown for a second
            checks = {check["name"]: check["reason"] for check in nobody.get("/readyz").json()["checks"]}
            assert "the ledger has not answered for" in checks["ledger"] and "witness" not in checks
            eventually(lambda: admin.get(f"{API}/status").status_code == 503)  # the last reading is shown for a while
            for path in (f"{API}/status", f"{API}/datasets", f"{API}/audit", "/metrics"):
                answer = admin.get(path)
                assert (answer.status_code, answer.json()["retryable"]) == (503, True), f"{path}: {answer.text}"
                assert int(answer.headers["retry-after"]) > 0
            log_in = nobody.post(f"{API}/session", json={"token": over_postgres.secrets[Role.READ]})
            assert (log_in.status_code, log_in.json()["type"]) == (503, "urn:strandline:problem:ledger-away")
            assert nobody.get("/healthz").status_code == 200
        come_back(proxy)
        eventually(lambda: admin.get(f"{API}/datasets").status_code == 200)
        eventually(lambda: nobody.get("/readyz").status_code == 200)
        eventually(lambda: admin.get(f"{API}/status").status_code == 200)


def test_a_run_that_is_under_way_while_the_ledger_is_away_goes_on_and_ends(
    over_postgres: Served, proxy: Proxy, surveying: Gate
) -> None:
    with over_postgres.as_role() as admin:
        place = admin.post(f"{API}/reconciliation/trigger").json()["place"]
        assert surveying.reached.wait(60)
        proxy.enable(False)
        assert admin.get(place).status_code == 503
        assert admin.post(f"{place}/cancel").status_code == 503, "it is not called off by that"
        proxy.enable(True)
        found = admin.get(place).json()
        assert (found["ended_at"], found["aborted"], found["stop_asked_at"]) == (None, None, None)
        surveying.set()
        eventually(lambda: admin.get(place).json()["ended_at"])
        assert admin.get(place).json()["aborted"] is None


@pytest.mark.parametrize("go_away", [lambda proxy: proxy.enable(False), go_silent], ids=["refused", "silent"])
def test_a_run_under_way_outlives_a_ledger_that_is_away_for_longer_than_its_lease(
    over_postgres: Served, proxy: Proxy, surveying: Gate, go_away: Callable[[Proxy], None]
) -> None:
    with over_postgres.as_role() as admin:
        place = admin.post(f"{API}/reconciliation/trigger").json()["place"]
        assert surveying.reached.wait(60)
        go_away(proxy)
        time.sleep(AWAY_SECONDS)
        come_back(proxy)
        eventually(lambda: admin.get(place).json()["ended_at"] is None)  # as died, until it gives a sign of life
        surveying.set()
        eventually(lambda: admin.get(f"{API}/reconciliation/status").json()["running"] is None)
        found = admin.get(place).json()
        assert (found["aborted"], found["why"]) == (None, None) and found["ended_at"]


def test_the_loops_of_a_daemon_outlive_a_ledger_that_is_away_for_longer_than_its_leases(
    home: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES", os.devnull)
    with server_process(home, "run", "--serve", module="tests.e2e.noting_daemon") as (process, url):

        def reasons() -> dict[str, str | None]:
            checks = httpx.get(f"{url}/readyz", timeout=60).json()["checks"]
            return {check["name"]: check["reason"] for check in checks}

        eventually(lambda: set(reasons()) >= {*LOOPS, "ledger", "api"} and not any(reasons().values()))
        proxy.enable(False)
        eventually(lambda: all(reasons().get(name) for name in (*LOOPS, "ledger")), 120)
        told = reasons()
        assert told["api"] is None and all("tried again" in str(told[name]) for name in LOOPS), told
        assert httpx.get(f"{url}/readyz", timeout=60).status_code == 503
        assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
        proxy.enable(True)
        eventually(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, 120)
        assert not any(reasons().values())
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0, rest
    events = [json.loads(line) for line in rest.splitlines()]
    for loop in LOOPS:
        seen = [e["event"] for e in events if e["event"] == f"{loop}_failed" or e.get("loop") == loop]
        assert {*seen} == {f"{loop}_failed", "well_again"} and seen[-1] == "well_again", (loop, seen)


def test_a_run_whose_end_finds_the_ledger_away_stores_it_when_the_ledger_is_back(
    over_postgres: Served, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, tries = reconcile_runs.complete, list[int]()

    def complete(connection: Any, run: Any, outcome: Any) -> bool:
        tries.append(run)
        if len(tries) == 1:
            proxy.enable(False)
        return real(connection, run, outcome)

    monkeypatch.setattr(reconcile_runs, "complete", complete)
    with over_postgres.as_role() as admin:
        place = admin.post(f"{API}/reconciliation/trigger").json()["place"]
        eventually(lambda: "is stored when the ledger answers" in caplog.text)
        proxy.enable(True)
        eventually(lambda: admin.get(place).json()["ended_at"])
        found = admin.get(place).json()
        assert found["aborted"] is None and set(found["phases"]) > {"settle"}, "what it counted until then is there"
        eventually(lambda: not admin.get(f"{API}/reconciliation/status").json()["running"])
        again = admin.post(f"{API}/reconciliation/trigger")
        assert again.status_code == 202, again.text
        eventually(lambda: admin.get(again.json()["place"]).json()["ended_at"])


def test_a_run_that_meets_the_ledger_away_in_its_middle_ends_with_that_as_its_reason(
    over_postgres: Served, proxy: Proxy, surveying: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with over_postgres.as_role() as admin:
        place = admin.post(f"{API}/reconciliation/trigger").json()["place"]
        assert surveying.reached.wait(60)
        proxy.enable(False)
        surveying.set()
        eventually(lambda: "is stored when the ledger answers" in caplog.text)
        proxy.enable(True)
        eventually(lambda: admin.get(place).json()["ended_at"])
        found = admin.get(place).json()
        assert found["aborted"] == "unknown" and "the ledger did not answer" in found["why"], found


def test_whoever_logs_out_while_the_ledger_is_away_loses_the_cookie_and_is_told_that_the_session_goes_on(
    over_postgres: Served, proxy: Proxy
) -> None:
    with httpx.Client(base_url=over_postgres.url, timeout=60) as browser:
        csrf = browser.post(f"{API}/session", json={"token": over_postgres.secrets[Role.READ]}).json()["csrf"]
        cookie = browser.cookies[COOKIE]
        proxy.enable(False)
        out = browser.post("/logout", data={"csrf": csrf})
        assert (out.status_code, out.headers["location"]) == (303, "/login?out=true&ended=false"), out.text
        assert COOKIE not in browser.cookies
        said = browser.get(out.headers["location"])
        assert said.status_code == 200 and "the session stays valid" in said.text
        proxy.enable(True)
        still = httpx.get(f"{over_postgres.url}{API}/session", cookies={COOKIE: cookie}, timeout=60)
        assert still.status_code == 200, "what it was told is true"
