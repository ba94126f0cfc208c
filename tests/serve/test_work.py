"""Long work over HTTP: begun with 202, looked at, called off; and what happens when the ledger or the server goes."""

from __future__ import annotations

import json
import shutil
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.core.errors import AlreadyRunning, RefusedError, TooManyTasks
from strandline.core.records.reconcile_records import Asked, StorageKind
from strandline.core.roles import Role
from strandline.deliver.facade import Delivery
from strandline.jobs.tasks import Tasks
from strandline.lake import Lake, open_lake
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceKind, NewRun
from strandline.ledger.reconcile import reconcile_runs
from strandline.reconcile import sweep
from strandline.serve.server import check_loopback, serve_lake
from strandline.serve.work import LongWork, OnBegun
from tests.serve.conftest import API, Served, serving
from tests.waiting import eventually

TRIGGER = f"{API}/reconciliation/trigger"


def test_the_status_of_the_reconciler_always_answers(served: Served) -> None:
    with served.as_role(Role.READ) as reader:
        found = reader.get(f"{API}/reconciliation/status").json()
    assert (found["enabled"], found["next_run"], found["running"], found["last_run"]) == (False, None, None, None)
    assert found["reason"] and found["report_only"] is True and found["storage"] == "local" and found["schedule"]


@pytest.mark.parametrize("settings", [{"reconcile": {"enabled": True, "schedule": "0 3 * * *"}}])
def test_an_enabled_reconciler_says_when_it_runs_next(admin: httpx.Client) -> None:
    found = admin.get(f"{API}/reconciliation/status").json()
    assert found["enabled"] and found["reason"] is None and "T03:00:00" in found["next_run"]


@pytest.mark.parametrize(
    ("query", "acts"),
    [({}, False), ({"dry_run": "true"}, False), ({"act": "false"}, False), ({"dry_run": "false", "act": "true"}, True)],
)
def test_a_run_acts_only_with_both_words(admin: httpx.Client, query: dict[str, str], acts: bool) -> None:
    begun = admin.post(TRIGGER, params=query)
    assert begun.status_code == 202, begun.text
    run = begun.json()["run"]
    place = f"{API}/reconciliation/runs/{run}"
    assert begun.json()["place"] == begun.headers["location"] == place
    eventually(lambda: admin.get(place).json()["ended_at"])
    found = admin.get(place).json()
    assert (found["dry_run"], found["actor"], found["trigger"]) == (not acts, "the admin", "api")
    assert [r["run"] for r in admin.get(f"{API}/reconciliation/runs").json()["runs"]] == [run]
    assert admin.get(f"{API}/reconciliation/status").json()["last_run"]["run"] == run


@pytest.mark.parametrize("query", [{"dry_run": "false"}, {"act": "true"}, {"dry_run": "false", "act": "false"}])
def test_one_word_without_the_other_is_refused(admin: httpx.Client, query: dict[str, str]) -> None:
    assert admin.post(TRIGGER, params=query).status_code == 400
    assert admin.get(f"{API}/reconciliation/runs").json()["runs"] == []


def test_a_second_run_is_refused_while_one_runs_and_the_first_can_be_called_off(
    admin: httpx.Client, surveying: threading.Event
) -> None:
    run = admin.post(TRIGGER).json()["run"]
    assert admin.get(f"{API}/reconciliation/status").json()["running"] == run
    again = admin.post(TRIGGER)
    assert (again.status_code, again.json()["type"]) == (409, "urn:strandline:problem:sweep-running")
    assert again.json()["retryable"] and again.headers["retry-after"]
    assert admin.post(f"{API}/reconciliation/runs/{run}/cancel").status_code == 200
    eventually(lambda: admin.get(f"{API}/reconciliation/runs/{run}").json()["aborted"] == "cancelled")
    ended = admin.post(f"{API}/reconciliation/runs/{run}/cancel")
    assert ended.status_code == 200 and ended.json()["aborted"] == "cancelled"
    assert admin.get(f"{API}/reconciliation/status").json()["running"] is None


def test_while_another_process_has_the_lease_a_run_is_refused_and_leaves_no_record(
    served: Served, admin: httpx.Client
) -> None:
    lease = reconcile_runs.take_lease(served.lake.ledger, seconds=600)
    assert lease is not None
    refused = admin.post(TRIGGER)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:strandline:problem:sweep-running")
    assert admin.get(f"{API}/reconciliation/runs").json()["runs"] == []
    reconcile_runs.leases.release(served.lake.ledger, lease)
    run = admin.post(TRIGGER).json()["run"]
    eventually(lambda: admin.get(f"{API}/reconciliation/runs/{run}").json()["ended_at"])


def test_a_run_that_nobody_knows_cannot_be_looked_at_or_called_off(admin: httpx.Client) -> None:
    assert admin.get(f"{API}/reconciliation/runs/7").status_code == 404
    assert admin.post(f"{API}/reconciliation/runs/7/cancel").status_code == 404
    assert admin.get(f"{API}/audit", params={"event": "reconcile.run_called_off"}).json()["events"] == []


def test_a_run_is_called_off_through_a_server_that_did_not_begin_it(
    served: Served, admin: httpx.Client, surveying: threading.Event, quick_heartbeats: None
) -> None:
    run = admin.post(TRIGGER).json()["run"]
    with open_lake(served.lake.config.home) as again, serving(again) as url:
        with Served(again, url, served.secrets).as_role() as other:
            asked = other.post(f"{API}/reconciliation/runs/{run}/cancel").json()
            assert asked["stop_asked_at"] and asked["aborted"] is None
            eventually(lambda: other.get(f"{API}/reconciliation/runs/{run}").json()["aborted"] == "cancelled")
            found = other.get(f"{API}/audit", params={"event": "reconcile.run_called_off"}).json()["events"]
            assert [(e["actor"], e["detail"]["run"]) for e in found] == [("the admin", run)]


def test_a_server_that_stops_calls_its_runs_off(lake: Lake, surveying: threading.Event) -> None:
    secret = lake.receiver.create_token("admin", role=Role.ADMIN)[1]
    with serving(lake) as url:
        begun = httpx.post(f"{url}{TRIGGER}", headers={"Authorization": f"Bearer {secret}"}, timeout=60)
        run = begun.json()["run"]
    found, _ = lake.reconciler.show(run)
    assert found.aborted is not None and found.aborted.value == "cancelled"


def test_a_ledger_that_is_away_is_503_and_comes_back_by_itself(served: Served, admin: httpx.Client) -> None:
    path = served.lake.config.ledger_file
    assert path is not None
    aside = path.with_name("aside")
    shutil.move(path, aside)
    for place in ("status", "datasets", "sinks", "session"):
        away = admin.get(f"{API}/{place}")
        assert (away.status_code, away.json()["type"]) == (503, "urn:strandline:problem:ledger-away"), away.text
        assert away.json()["retryable"] and away.headers["retry-after"] and str(path) not in away.text
    with served.client() as anyone:
        away = anyone.post(f"{API}/session", json={"token": "sl_any"})
        assert away.status_code == 503 and str(path) not in away.text
        assert anyone.get("/readyz").status_code == 503 and anyone.get("/healthz").status_code == 200
    shutil.move(aside, path)
    assert admin.get(f"{API}/status").status_code == 200


def test_a_run_that_fails_as_nobody_foresaw_is_logged_also_after_it_was_answered(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    work = LongWork(Tasks(lake.ledger, lease_seconds=60, at_once_max=2), stop_seconds_max=60)

    def fail(error: Exception) -> None:
        def run(stopping: threading.Event, begun: OnBegun) -> None:
            begun(7)
            raise error

        assert work.start_run("test", run) == 7
        eventually(lambda: not work.call_off("test", 7))

    fail(RefusedError("the table is not fit"))
    fail(ZeroDivisionError("division"))
    work.close()
    [record] = [r for r in caplog.records if r.name == "strandline.serve.work"]
    assert record.getMessage() == "run 7 (test) failed with an unexpected error" and record.exc_info


def test_work_that_fails_before_it_is_on_record_is_answered_with_its_error(lake: Lake) -> None:
    work = LongWork(Tasks(lake.ledger, lease_seconds=60, at_once_max=1), stop_seconds_max=5)

    def refuse(stopping: threading.Event, begun: OnBegun) -> None:
        raise AlreadyRunning("it runs")

    for _ in range(3):  # each gives its place back
        with pytest.raises(AlreadyRunning):
            work.start_run("test", refuse)
    let = threading.Event()

    def wait(stopping: threading.Event, begun: OnBegun) -> None:
        begun(7)
        while not (stopping.is_set() or let.wait(0.01)):
            pass

    assert work.start_run("test", wait) == 7
    with pytest.raises(TooManyTasks):
        work.start_run("test", wait)
    with pytest.raises(TooManyTasks):  # tasks have no places of their own
        work.tasks.start("test", "", lambda stopping: {})
    assert not work.call_off("test", 8) and not work.call_off("other", 7)
    assert work.call_off("test", 7)
    eventually(lambda: not work.call_off("test", 7))
    assert work.start_run("test", wait) == 7
    work.close()
    assert not work.call_off("test", 7) and work.is_stopping
    with pytest.raises(TooManyTasks):
        work.start_run("test", wait)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_needs_no_tls(host: str) -> None:
    check_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.com", "10.0.0.1"])
def test_other_machines_do(lake: Lake, host: str) -> None:
    with pytest.raises(RefusedError, match="plain text"):
        serve_lake(lake, threading.Event(), host=host, port=0)


def test_an_explicit_word_opens_it_without_tls(lake: Lake) -> None:
    with serving(lake, host="0.0.0.0", insecure_http=True) as url:
        port = url.rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60).status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}{API}/status", timeout=60).status_code == 401


def test_with_tls_the_cookie_is_secure(tmp_path: Path, lake: Lake) -> None:
    from tests.tls import certificate

    own, key = certificate(tmp_path / "own")
    path = lake.config.home / "strandline.toml"
    path.write_text(f'{path.read_text("utf-8")}\n[serve]\ntls_certificate = "{own}"\ntls_key = "{key}"\n', "utf-8")
    secret = lake.receiver.create_token("reader", role=Role.READ)[1]
    with open_lake(path) as secured, serving(secured, host="127.0.0.1") as url:
        assert url.startswith("https://")
        answer = httpx.post(
            f"{url}{API}/session",
            json={"token": secret},
            verify=ssl.create_default_context(cafile=str(own)),
            timeout=60,
        )
        assert answer.status_code == 201 and "secure" in answer.headers["set-cookie"].lower()
        assert answer.headers["strict-transport-security"]


def test_a_run_whose_process_died_is_told_and_settled_by_the_next_one(served: Served, admin: httpx.Client) -> None:
    lease = reconcile_runs.take_lease(served.lake.ledger, seconds=60)
    assert lease is not None
    with served.lake.ledger.write() as connection:
        dead = reconcile_runs.start(connection, Asked(act=True), StorageKind.LOCAL)
    assert admin.get(f"{API}/reconciliation/status").json()["running"] == dead
    assert admin.post(f"{API}/reconciliation/runs/{dead}/cancel").json()["stop_asked_at"], "it may live elsewhere"
    reconcile_runs.leases.release(served.lake.ledger, lease)  # its time is over
    assert admin.get(f"{API}/reconciliation/status").json()["running"] is None

    def is_told() -> None:
        found = admin.get(f"{API}/reconciliation/runs/{dead}").json()
        assert (found["aborted"], found["why"]) == ("died", "its process ended without recording why")
        listed = [r for r in admin.get(f"{API}/reconciliation/runs").json()["runs"] if r["run"] == dead]
        assert found["ended_at"] and listed[0]["aborted"] == "died"

    is_told()
    assert admin.get(f"{API}/reconciliation/status").json()["last_run"]["aborted"] == "died"
    assert admin.get(f"{API}/status").json()["reconcile"]["aborted"] == "died"
    assert admin.post(f"{API}/reconciliation/runs/{dead}/cancel").json()["aborted"] == "died"
    with served.client() as browser:
        browser.post(f"{API}/session", json={"token": served.secrets[Role.ADMIN]})
        for page in ("/drift", f"/drift/runs/{dead}"):
            shown = browser.get(page)
            assert shown.status_code == 200 and "died" in shown.text and "under way" not in shown.text
    run = admin.post(TRIGGER).json()["run"]
    eventually(lambda: admin.get(f"{API}/reconciliation/runs/{run}").json()["ended_at"])
    is_told()


def test_a_run_of_maintenance_whose_process_died_is_told_without_another_run(
    served: Served, admin: httpx.Client, dataset: str
) -> None:
    with served.lake.ledger.write() as connection:
        new = NewRun(served.lake.dataset(dataset).id, MaintenanceKind.COMPACT, "gone:1")
        run = runs.begin(connection, new, lease_seconds=60)
        connection.exec_driver_sql("UPDATE maintenance_run SET heartbeat_at = heartbeat_at - 172800000000")
    found = admin.get(f"{API}/maintenance/runs/{run}").json()
    assert found["outcome"] == "died" and found["ended_at"] and found["reason"] and found["seconds"] is not None
    assert [r["outcome"] for r in admin.get(f"{API}/maintenance/runs").json()["runs"]] == ["died"]
    assert '"outcome": "died"' in json.dumps(admin.get(f"{API}/status").json()["maintenance"])
    with served.client() as browser:
        browser.post(f"{API}/session", json={"token": served.secrets[Role.ADMIN]})
        for page in ("/runs", f"/runs/maintenance/{run}", f"/datasets/{dataset}"):
            shown = browser.get(page)
            assert shown.status_code == 200 and "died" in shown.text and "under way" not in shown.text, page


def test_a_run_of_the_reconciler_is_answered_before_it_settles_what_a_dead_one_left(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    let, settle = threading.Event(), sweep.settle_dead_runs

    def slow(*arguments: Any, **options: Any) -> list[str]:
        assert let.wait(60), "the answer has waited for it"
        return settle(*arguments, **options)

    monkeypatch.setattr(sweep, "settle_dead_runs", slow)
    begun = admin.post(TRIGGER)
    assert begun.status_code == 202, begun.text
    place = begun.json()["place"]
    assert admin.get(f"{API}/reconciliation/status").json()["running"] == begun.json()["run"]
    assert admin.get(place).json()["ended_at"] is None
    let.set()
    eventually(lambda: admin.get(place).json()["ended_at"])
    assert admin.get(place).json()["aborted"] is None


def test_a_run_of_maintenance_is_answered_before_it_settles_what_dead_writers_left(
    served: Served, admin: httpx.Client, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = threading.Event()

    def slow(*_: object) -> None:
        assert let.wait(60), "the answer has waited for it"
        raise RefusedError("it cannot be settled")

    monkeypatch.setattr(type(served.lake.maintenance.context.ingestion), "catch_up", slow)
    begun = admin.post(f"{API}/maintenance/compact", json={"dataset": dataset})
    assert begun.status_code == 202, begun.text
    place = begun.json()["place"]
    assert admin.get(place).json()["ended_at"] is None
    let.set()
    eventually(lambda: admin.get(place).json()["ended_at"])
    found = admin.get(place).json()
    assert (found["outcome"], found["reason"]) == ("refused", "it cannot be settled")


def test_a_sink_with_a_condition_is_answered_before_spark_checks_it(
    admin: httpx.Client, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = threading.Event()

    def slow(_delivery: Delivery, _dataset: object, where: str | None) -> None:
        assert where is None or let.wait(60), "the answer has waited for it"

    monkeypatch.setattr(Delivery, "_check_where", slow)
    options = {"path": str(tmp_path / "out"), "where": "id > 1"}
    wanted = {"name": "out", "dataset": dataset, "kind": "files", "options": options}
    assert admin.post(f"{API}/sinks", json=wanted | {"dataset": "nosuch"}).status_code == 404
    for method, path, body in (
        ("POST", f"{API}/sinks", wanted),
        ("PATCH", f"{API}/sinks/out", {"options": {"where": "id > 2"}}),
    ):
        begun = admin.request(method, path, json=body)
        assert begun.status_code == 202, begun.text
        assert admin.get(begun.json()["place"]).json()["ended_at"] is None
        let.set()
        eventually(lambda place=begun.json()["place"]: admin.get(place).json()["ended_at"])
        found = admin.get(begun.json()["place"]).json()
        assert (found["outcome"], found["result"]["options"]["where"]) == ("done", body["options"]["where"]), found
        let.clear()
    unset = admin.patch(f"{API}/sinks/out", json={"unset": ["where"]})
    assert unset.status_code == 200 and "where" not in unset.json()["options"]
