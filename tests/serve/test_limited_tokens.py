"""What a token that is limited to some datasets learns of the others: nothing, not even that they are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from strandline.core.actor import Actor, Trigger, acting_as
from strandline.core.roles import Role
from strandline.ledger import tasks
from strandline.ledger.maintain import runs
from tests.serve.conftest import API, COLUMNS, Served
from tests.serve.test_api import add_sink

HIDDEN, UNKNOWN = "secret-one", "nosuch-one"  # as long as each other


@pytest.fixture
def limited(served: Served, admin: httpx.Client, tmp_path: Path) -> Iterator[httpx.Client]:
    for name in ("mine", "other", "gone"):
        admin.post(f"{API}/datasets", json={"name": name, "columns": COLUMNS})
    assert add_sink(admin, tmp_path / "out", HIDDEN, "other").status_code == 201
    with served.client(served.token("limited", Role.ADMIN, ["mine", "gone"])) as client:
        assert admin.delete(f"{API}/datasets/gone").status_code == 200
        yield client


def whole(answer: httpx.Response, name: str) -> tuple[int, dict[str, str], str]:
    """An answer with everything that can tell it from another one."""
    headers = {k: v for k, v in answer.headers.items() if k not in ("date", "content-length")}
    return answer.status_code, headers, answer.text.replace(name, "NAME")


def same_for(client: httpx.Client, method: str, place: str, hidden: str, unknown: str, body: object = None) -> None:
    found = [whole(client.request(method, place.format(n), json=body), n) for n in (hidden, unknown)]
    assert found[0] == found[1], f"{method} {place}"
    assert found[0][0] == 404 and "other" not in found[0][2] and HIDDEN not in found[0][2], f"{method} {place}"


def test_a_hidden_sink_is_answered_like_one_that_does_not_exist(limited: httpx.Client) -> None:
    for method, place, body in (
        ("GET", f"{API}/sinks/{{}}", None),
        ("PATCH", f"{API}/sinks/{{}}", {"unset": ["path"]}),
        ("DELETE", f"{API}/sinks/{{}}", None),
        ("POST", f"{API}/sinks/{{}}/pause", None),
        ("POST", f"{API}/sinks/{{}}/resume", None),
        ("POST", f"{API}/sinks/{{}}/tick", {}),
        ("POST", f"{API}/sinks/{{}}/reset", {"to": "beginning"}),
        ("POST", f"{API}/sinks/{{}}/recover", {}),
        ("POST", f"{API}/sinks/{{}}/verify", {}),
        ("GET", f"{API}/quarantined-rows?sink={{}}", None),
        ("GET", "/sinks/{}", None),
        ("GET", "/quarantine/rows?sink={}", None),
    ):
        same_for(limited, method, place, HIDDEN, UNKNOWN, body)


def test_a_hidden_dataset_is_answered_like_one_that_does_not_exist(limited: httpx.Client) -> None:
    for method, place in (
        ("GET", f"{API}/datasets/{{}}"),
        ("GET", f"{API}/datasets/{{}}/blocks"),
        ("DELETE", f"{API}/datasets/{{}}"),
        ("GET", f"{API}/maintenance/runs?dataset={{}}"),
        ("GET", "/datasets/{}"),
    ):
        found = [whole(limited.request(method, place.format(name)), name) for name in ("other", "nosuch", "gone")]
        assert found[0] == found[1] == found[2] and found[0][0] == 404, f"{method} {place}"


def test_a_hidden_run_or_task_is_answered_like_one_that_does_not_exist(served: Served, limited: httpx.Client) -> None:
    new = runs.NewRun(served.lake.dataset("other").id, runs.Kind.COMPACT, "node-1")
    with served.lake.ledger.write() as connection:
        run = str(runs.begin(connection, new, lease_seconds=60))
        task = str(tasks.begin(connection, "tick", HIDDEN, "node-1", lease_seconds=60)[0].id)
    for method, place, hidden in (
        ("GET", f"{API}/maintenance/runs/{{}}", run),
        ("POST", f"{API}/maintenance/runs/{{}}/cancel", run),
        ("GET", "/runs/maintenance/{}", run),
        ("GET", f"{API}/tasks/{{}}", task),
        ("POST", f"{API}/tasks/{{}}/cancel", task),
        ("GET", "/runs/tasks/{}", task),
    ):
        found = [whole(limited.request(method, place.format(n)), f"no run {n}") for n in (hidden, "777777")]
        assert found[0] == found[1] and found[0][0] == 404, f"{method} {place}"


def test_a_whole_token_is_told_what_there_is(admin: httpx.Client, limited: httpx.Client) -> None:
    assert HIDDEN in admin.get(f"{API}/sinks/{UNKNOWN}").json()["hint"]


def test_the_status_for_a_limited_token_says_nothing_of_the_whole_lake(
    admin: httpx.Client, limited: httpx.Client
) -> None:
    assert isinstance(admin.get(f"{API}/status").json()["sequence"], int)
    status = limited.get(f"{API}/status").json()
    assert (status["sequence"], status["witness"], status["problem"]) == (None, None, None)
    assert set(status["reconcile"].values()) == {None}
    assert "limited to some datasets" in limited.get("/drift").text


def test_a_task_that_failed_does_not_name_hidden_sinks_either(served: Served, limited: httpx.Client) -> None:
    error = {"type": "NoSuchSink", "message": "there is no sink x", "hint": f"Sinks: {HIDDEN}.", "retryable": False}
    with acting_as(Actor("limited", Trigger.API)), served.lake.ledger.write() as connection:
        task, lease = tasks.begin(connection, "tick", "x", "node-1", lease_seconds=60)
        tasks.end(connection, lease, tasks.Outcome.REFUSED, error=error)
    for place in (f"tasks/{task.id}", "tasks"):
        assert "there is no sink x" in (shown := limited.get(f"{API}/{place}").text) and HIDDEN not in shown


def test_a_token_does_not_see_the_tasks_of_a_revoked_one_of_the_same_name(
    served: Served, limited: httpx.Client, admin: httpx.Client
) -> None:
    with acting_as(Actor("limited", Trigger.API)), served.lake.ledger.write() as connection:
        task = tasks.begin(connection, "tick", "x", "node-1", lease_seconds=60)[0].id
    assert limited.get(f"{API}/tasks/{task}").status_code == 200
    assert admin.delete(f"{API}/tokens/limited").status_code == 200
    with served.client(served.token("limited", Role.ADMIN, ["mine"])) as later:
        assert later.get(f"{API}/tasks/{task}").status_code == 404
        assert later.post(f"{API}/tasks/{task}/cancel").status_code == 404
        assert later.get(f"{API}/tasks").json()["tasks"] == []
