"""The API over tables with rows: work that needs Spark, begun, looked at and called off over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.roles import Role
from strandline.maintain.facade import Maintenance
from tests.conftest import MakeHome
from tests.serve.conftest import API, Served, eventually, serving
from tests.spark.lakes import create, new_lake, numbers
from tests.spark.upkeep import data_files


@pytest.fixture
def served(tmp_path: Path, make_home: MakeHome) -> Iterator[Served]:
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long"})
        for lo in (1, 11, 21):
            lake.append("events", numbers(lake, lo, lo + 9))
        secrets = {Role.ADMIN: lake.receiver.create_token("admin", role=Role.ADMIN)[1]}
        with serving(lake) as url:
            yield Served(lake, url, secrets)


def test_rows_are_delivered_proved_compacted_and_forgotten_over_http(served: Served, tmp_path: Path) -> None:
    with served.as_role() as admin:

        def done(path: str, **body: Any) -> dict[str, Any]:
            begun = admin.post(f"{API}/{path}", json=body)
            assert begun.status_code == 202, begun.text
            place = begun.json()["place"]
            eventually(lambda: admin.get(place).json()["ended_at"], 300)
            found: dict[str, Any] = admin.get(place).json()
            assert found["outcome"] == "done", found
            return found

        sink = {"name": "out", "dataset": "events", "kind": "files", "options": {"path": str(tmp_path / "out")}}
        assert admin.post(f"{API}/sinks", json=sink).status_code == 201
        assert done("sinks/out/tick", dry_run=True)["result"]["rows"] == 30
        assert admin.get(f"{API}/sinks/out").json()["lag_rows"] == 30
        assert done("sinks/out/tick")["result"]["rows"] == 30
        assert admin.get(f"{API}/sinks/out").json()["lag_rows"] == 0
        assert done("sinks/out/verify")["result"]["ok"] is True
        before = data_files(served.lake, "events")
        rehearsed = done("maintenance/compact", dataset="events", dry_run=True)
        assert rehearsed["kind"] == "compact_dry_run" and data_files(served.lake, "events") == before
        run = done("maintenance/compact", dataset="events")
        assert (run["kind"], run["actor"], run["trigger"]) == ("compact", "admin", "api")
        assert data_files(served.lake, "events") < before
        purged = done("maintenance/purge", dataset="events", where="n <= 5")
        assert purged["kind"] == "purge"
        assert [r["kind"] for r in admin.get(f"{API}/maintenance/runs").json()["runs"]][:2] == ["purge", "compact"]
        assert "n <= 5" not in admin.get(f"{API}/audit", params={"limit": 1000}).text


def test_maintenance_that_is_called_off_ends_before_it_commits(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, let = threading.Event(), threading.Event()
    real = Maintenance._compact

    def slow(self: Maintenance, *arguments: Any) -> Any:
        begun.set()
        let.wait(60)
        return real(self, *arguments)

    monkeypatch.setattr(Maintenance, "_compact", slow)
    before = data_files(served.lake, "events")
    with served.as_role() as admin:
        place = admin.post(f"{API}/maintenance/compact", json={"dataset": "events"}).json()["place"]
        again = admin.post(f"{API}/maintenance/compact", json={"dataset": "events"})
        assert (again.status_code, again.json()["type"]) == (409, "urn:strandline:problem:already-running")
        assert begun.wait(60) and admin.post(f"{place}/cancel").status_code == 200
        let.set()
        eventually(lambda: admin.get(place).json()["ended_at"], 120)
        found = admin.get(place).json()
    assert (found["outcome"], found["reason"]) == ("skipped", "it was called off")
    assert data_files(served.lake, "events") == before
