"""Two servers, each a process of its own, over one PostgreSQL ledger."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from strandline.core.roles import Role
from strandline.lake_admin import init_lake
from tests.fork_server import Forked
from tests.serve.conftest import API, COLUMNS
from tests.served_process import server_process
from tests.servers import Postgres
from tests.waiting import eventually

TRIGGER = f"{API}/reconciliation/trigger"


@pytest.fixture
def secret(tmp_path: Path, postgres_server: Postgres) -> str:
    with init_lake(tmp_path, ledger=postgres_server.create_database()) as lake:
        return lake.receiver.create_token("the admin", role=Role.ADMIN)[1]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def server(stack: ExitStack, home: Path, secret: str, failpoint: str = "") -> tuple[httpx.Client, Forked]:
    process, url = stack.enter_context(server_process(home, failpoint=failpoint))
    client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60)
    return stack.enter_context(client), process


def test_what_one_does_the_other_shows_and_of_two_that_create_the_same_one_is_refused(
    tmp_path: Path, stack: ExitStack, secret: str
) -> None:
    (one, _), (two, _) = (server(stack, tmp_path, secret) for _ in range(2))
    both = [one, two]
    with ThreadPoolExecutor(2) as pool:
        for n in range(5):
            new = {"name": f"events{n}", "columns": COLUMNS}
            answers = list(pool.map(lambda c, new=new: c.post(f"{API}/datasets", json=new), both))
            assert sorted(a.status_code for a in answers) == [201, 409], "\n".join(a.text for a in answers)
    assert one.get(f"{API}/datasets").json() == two.get(f"{API}/datasets").json()
    assert len(one.get(f"{API}/datasets").json()["datasets"]) == 5
    made = one.post(f"{API}/tokens", json={"name": "reader", "role": "read"})
    with httpx.Client(base_url=one.base_url, timeout=60) as browser:
        logged_in = browser.post(f"{API}/session", json={"token": made.json()["secret"]})
        assert logged_in.status_code == 201
        with httpx.Client(base_url=two.base_url, cookies=dict(browser.cookies), timeout=60) as same:
            assert same.get(f"{API}/session").json() == logged_in.json(), "a session is good at both"
            assert one.delete(f"{API}/tokens/reader").status_code == 200
            eventually(lambda: same.get(f"{API}/session").status_code == 401)
    with httpx.Client(base_url=one.base_url, timeout=60) as browser:
        csrf = browser.post(f"{API}/session", json={"token": secret}).json()["csrf"]
        with httpx.Client(base_url=two.base_url, cookies=dict(browser.cookies), timeout=60) as same:
            assert same.get(f"{API}/session").status_code == 200
            assert browser.delete(f"{API}/session", headers={"X-CSRF-Token": csrf}).status_code == 200
            eventually(lambda: same.get(f"{API}/session").status_code == 401)  # who logged out did so everywhere


def test_a_run_of_one_is_under_way_for_the_other(tmp_path: Path, stack: ExitStack, secret: str) -> None:
    one, process = server(stack, tmp_path, secret, "reconcile.after_start=stop")
    two, _ = server(stack, tmp_path, secret)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(one.post, TRIGGER)  # it stands still before it answers, or right after that
        try:
            process.wait_until_stopped(60)
            run = two.get(f"{API}/reconciliation/status").json()["running"]
            place = f"{API}/reconciliation/runs/{run}"
            refused = two.post(TRIGGER)
            assert (refused.status_code, refused.json()["type"]) == (409, "urn:strandline:problem:sweep-running")
            assert two.post(f"{place}/cancel").json()["stop_asked_at"]
        finally:
            process.send_signal(signal.SIGCONT)
        assert asked.result(60).json()["run"] == run
    eventually(lambda: two.get(place).json()["ended_at"])
    found = two.get(place).json()
    assert found["aborted"] == "cancelled", "it sees this at its next durable step at the latest"
    assert one.get(place).json() == found and found["actor"] == "the admin"
    again = two.post(TRIGGER)
    assert again.status_code == 202, again.text
    eventually(lambda: one.get(again.json()["place"]).json()["ended_at"])
