"""A server that is killed while a run is under way that a request has begun."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.core.roles import Role
from tests.reconcile.test_crash import outlive_lease
from tests.reconcile.whole_lakes import MakeLake, there
from tests.serve.conftest import API
from tests.served_process import server_process
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)

RUNS = f"{API}/reconciliation/runs"
TRIGGER = f"{API}/reconciliation/trigger"
MODULE = "tests.reconcile.serve_without_grace"


@pytest.mark.parametrize(
    "point", [pytest.param("reconcile.after_start", marks=pytest.mark.torture), "reconcile.after_files_moved"]
)
def test_its_run_is_told_as_died_and_what_it_left_is_settled_by_a_run_of_the_next_server(
    make_lake: MakeLake, point: str
) -> None:
    lake = make_lake(4, batch_size=3, lease_seconds=600)
    orphans, live = lake.puts(5), lake.data_files()
    secret = lake.lake.receiver.create_token("the admin", role=Role.ADMIN)[1]
    headers = {"Authorization": f"Bearer {secret}"}
    with server_process(lake.home, failpoint=f"{point}=kill", module=MODULE) as (process, url):
        with suppress(httpx.TransportError):  # it may die before it has answered
            begun = httpx.post(
                f"{url}{TRIGGER}", params={"dry_run": "false", "act": "true"}, headers=headers, timeout=60
            )
            assert begun.status_code == 202, begun.text
        assert process.wait(60) == -signal.SIGKILL
    with (
        server_process(lake.home, module=MODULE) as (_, url),
        httpx.Client(base_url=url, headers=headers, timeout=60) as admin,
    ):
        [left] = admin.get(RUNS).json()["runs"]
        assert (left["ended_at"], left["aborted"]) == (None, None), "nobody can know yet"
        assert admin.post(TRIGGER).status_code == 409
        outlive_lease(lake)
        [dead] = admin.get(RUNS).json()["runs"]
        assert (dead["aborted"], dead["actor"], dead["trigger"]) == ("died", "the admin", "api")
        assert admin.get(f"{API}/reconciliation/status").json()["running"] is None
        run = admin.post(TRIGGER).json()["run"]
        eventually(lambda: admin.get(f"{RUNS}/{run}").json()["ended_at"])
        assert admin.get(f"{RUNS}/{run}").json()["aborted"] is None
        settled = admin.get(f"{RUNS}/{dead['run']}").json()
        files: list[dict[str, Any]] = admin.get(f"{RUNS}/{dead['run']}/files").json()["files"]
    moved = len(orphans) - sum(there(orphans))
    assert moved == (3 if point == "reconcile.after_files_moved" else 0)
    assert settled["aborted"] == "died" and settled["done"]["orphans"] == settled["held"] == moved
    assert [f["state"] for f in files] == ["held"] * moved and settled["files_total"] == moved
    assert all(Path(f["kept_at"]).exists() for f in files) and all(there(live)), "none is lost"
