"""A PostgreSQL ledger that goes away under the API, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.core.roles import Role
from strandline.lake_admin import init_lake
from strandline.ledger.reconcile import reconcile_runs
from strandline.serve.auth.sessions import COOKIE
from tests.serve.conftest import API, COLUMNS, Gate, Served, eventually, serving
from tests.servers import Postgres, Proxy, Toxiproxy


@pytest.fixture
def proxy(postgres_server: Postgres, toxiproxy: Toxiproxy) -> Proxy:
    return toxiproxy.proxy_to(postgres_server.port)


@pytest.fixture
def over_postgres(tmp_path: Path, postgres_server: Postgres, proxy: Proxy) -> Iterator[Served]:
    url = postgres_server.create_database().replace(f":{postgres_server.port}/", f":{proxy.port}/")
    with init_lake(tmp_path, ledger=url) as lake:
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
        assert said.status_code == 200 and "the session itself goes on" in said.text
        proxy.enable(True)
        still = httpx.get(f"{over_postgres.url}{API}/session", cookies={COOKIE: cookie}, timeout=60)
        assert still.status_code == 200, "what it was told is true"
