"""The API over tables with rows: work that needs Spark, begun, looked at and called off over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.log_lines import log_lines
from strandline.core.roles import Role
from strandline.maintain.facade import Maintenance
from tests.conftest import MakeHome
from tests.serve.conftest import API, Served, serving
from tests.spark.lakes import create, new_lake, numbers
from tests.spark.upkeep import data_files
from tests.waiting import eventually


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
        some = {"path": str(tmp_path / "some"), "where": "n > 20"}
        assert done("sinks", **sink | {"name": "some", "options": some})["result"]["options"]["where"] == "n > 20"
        assert done("sinks/some/tick")["result"]["rows"] == 10
        wrong = admin.patch(f"{API}/sinks/some", json={"options": {"where": "rand() > 0.5"}}).json()["place"]
        eventually(lambda: admin.get(wrong).json()["outcome"] == "refused", 300)
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


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_purge_whose_condition_fails_on_a_row_repeats_neither(
    served: Served, capfd: pytest.CaptureFixture[str], dry_run: bool
) -> None:
    wanted = {"dataset": "events", "where": "cast(concat('hush', n) AS int) = 1", "dry_run": dry_run}
    with log_lines(as_json=True), served.as_role() as admin:
        place = admin.post(f"{API}/maintenance/purge", json=wanted).json()["place"]
        eventually(lambda: admin.get(place).json()["ended_at"], 300)
        found = admin.get(place).json()
        shown = [admin.get(f"{API}/{path}").text for path in ("tasks", "maintenance/runs", "audit", "status")]
    assert found["outcome"] == ("refused" if dry_run else "failed"), found
    told = found["error"]["message"] if dry_run else found["reason"]
    assert told.startswith("UsageError; its message is not stored"), "it failed on a row"
    assert [text for text in (str(found), *shown, *capfd.readouterr()) if "hush" in text] == []


@pytest.mark.torture  # without Spark in tests/serve, with a compaction that runs in tests/e2e
def test_maintenance_that_is_called_off_ends_before_it_commits(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, let = threading.Event(), threading.Event()
    real = Maintenance._compact

    def slow(self: Maintenance, *arguments: Any) -> Any:
        begun.set()
        assert let.wait(60)
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
