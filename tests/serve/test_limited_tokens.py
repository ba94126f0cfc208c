"""What a token that is limited to some datasets learns of the others: nothing, not even that they are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copyfile

import httpx
import pytest

from strandline.core.actor import Actor, Trigger, acting_as
from strandline.core.reconcile_records import AbortReason, Asked, Counts, Done, Outcome, StorageKind
from strandline.core.roles import Role
from strandline.deliver.sinks.blobs import names
from strandline.ledger import tasks
from strandline.ledger.maintain import runs
from strandline.ledger.reconcile import reconcile_runs
from strandline.serve.pages import live
from strandline.serve.snapshot import only_of
from strandline.status.receive import ReceiveStatus, SetAside
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


FOUND = Outcome(
    partial=True,
    listed=4711,
    referenced=4712,
    found=Counts(missing=4713, orphans=4714, foreign=4715, bytes=4716),
    done=Done(orphans=4717, bytes=4718),
    protected={"default.other": 4719},
    failures=("default.other",),
    samples=({"kind": "orphan", "table": "default.other", "path": "/w/other/x.parquet"},),
    stopped={"default.other": "shrunk"},
    refusals=("default.other has shrunk",),
)


@pytest.mark.parametrize("early", [False, True])
def test_of_the_last_run_of_the_reconciler_a_limited_token_sees_only_when_it_was_and_how_it_ended(
    served: Served, admin: httpx.Client, limited: httpx.Client, early: bool
) -> None:
    assert reconcile_runs.take_lease(served.lake.ledger, seconds=60) is not None
    with acting_as(Actor("the other one", Trigger.API)), served.lake.ledger.write() as connection:
        run = reconcile_runs.start(connection, Asked(act=True), StorageKind.LOCAL)
        if early:
            reconcile_runs.abort(connection, run, FOUND, AbortReason.GUARD, "default.other has shrunk")
        else:
            reconcile_runs.complete(connection, run, FOUND)
    whole, shown = (client.get(f"{API}/reconciliation/status").json() for client in (admin, limited))
    assert whole["last_run"]["found"]["missing"] == 4713
    last, page = shown["last_run"], limited.get("/drift").text
    seen = {"run", "dry_run", "started_at", "ended_at", "aborted"}
    assert {name: last[name] for name in seen} == {name: whole["last_run"][name] for name in seen}
    assert last["aborted"] == ("guard" if early else None) and last["ended_at"] is not None
    assert {name for name, value in last.items() if value is not None} <= seen, "unknown is not zero"
    assert {name: value for name, value in shown.items() if name != "last_run"} == {
        name: value for name, value in whole.items() if name != "last_run"
    }
    assert "Last run" in page and ("guard" in page) is early
    for hidden in ("47", "other", "shrunk", "partial"):
        assert hidden not in page.partition('<main id="main"')[2].replace("other way", ""), hidden


def test_adding_a_sink_at_a_place_that_is_taken_does_not_tell_a_limited_token_by_whom(
    served: Served, admin: httpx.Client, limited: httpx.Client, tmp_path: Path
) -> None:
    def add(client: httpx.Client, place: Path, name: str = "new") -> httpx.Response:
        body = {"name": name, "dataset": "mine", "kind": "files", "options": {"path": str(place)}}
        return client.post(f"{API}/sinks", json=body)

    inside = tmp_path / "out" / HIDDEN / names.dataset_folder("default.other")
    claimed = tmp_path / "out" / "claimed"
    (claimed / names.dataset_folder("default.mine")).mkdir(parents=True)
    copyfile(inside / names.CLAIM, claimed / names.dataset_folder("default.mine") / names.CLAIM)
    for place, whose in ((inside, HIDDEN), (claimed, "default.other")):
        found, told = add(limited, place), add(admin, place)
        assert whose in told.json()["detail"], "whoever sees the whole lake is told"
        assert (found.status_code, found.json()["type"]) == (409, told.json()["type"])
        assert HIDDEN not in found.text and "default.other" not in found.text
    assert add(limited, tmp_path / "own", "own").status_code == 201
    assert "sink own" in add(limited, tmp_path / "own").json()["detail"], "its own it may know"


def test_pages_of_tasks_are_complete_and_name_no_hidden_task(served: Served, limited: httpx.Client) -> None:
    begun: dict[str, list[int]] = {"limited": [], "another": []}
    with served.lake.ledger.write() as connection:
        for n in range(12):
            name = "limited" if n in (1, 2, 7, 10) else "another"
            with acting_as(Actor(name, Trigger.API)):
                begun[name].append(tasks.begin(connection, "tick", f"s{n}", "node-1", lease_seconds=60)[0].id)
    found: list[int] = []
    cursors: list[int | None] = []
    before: dict[str, int] = {}
    while not cursors or cursors[-1] is not None:
        answer = limited.get(f"{API}/tasks", params={"limit": 2, **before}).json()
        found += [task["task"] for task in answer["tasks"]]
        cursors.append(answer["next"])
        before = {"before": answer["next"]}
    assert found == sorted(begun["limited"], reverse=True)
    assert not set(cursors) & set(begun["another"]) and len(cursors) == 2, "every page but the last one is full"


@pytest.mark.parametrize("settings", [{"serve": {"refresh_seconds": 0}}])
def test_the_stream_of_events_does_not_tell_a_limited_token_that_others_change(
    admin: httpx.Client, limited: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "BEAT_SECONDS", 0.0)  # every look at the lake is told
    limited.event_hooks["response"] = []  # they would wait for the end of the answer
    with limited.stream("GET", "/live") as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("event:"))
        assert next(lines) == "event: changed"
        assert admin.post(f"{API}/sinks/{HIDDEN}/pause").status_code == 200
        assert [next(lines) for _ in range(3)] == ["event: beat"] * 3, "the last of these looks came after the change"
        assert admin.delete(f"{API}/datasets/mine").status_code == 200
        assert next(line for line in lines if line != "event: beat") == "event: changed"


def test_the_status_does_not_say_whether_others_received_anything(served: Served, limited: httpx.Client) -> None:
    spooled = ReceiveStatus("default.other", 1, 2, 3, None, (), SetAside(0, 0, 0), dropped=False)
    nothing, something = (replace(served.lake.status(), receive=r) for r in (None, (spooled,)))
    assert only_of(nothing, ("default.mine",)) == only_of(something, ("default.mine",))
