"""What a token that is limited to some datasets learns of the others: nothing, not even that they are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from strandline.core.actor import Actor, Trigger, acting_as
from strandline.core.errors import DestinationTaken
from strandline.core.records.reconcile_records import AbortReason, Asked, Counts, Done, StorageKind, SweepOutcome
from strandline.core.roles import Role
from strandline.deliver.facade import Delivery
from strandline.ledger import tasks
from strandline.ledger.deliver import sinks
from strandline.ledger.maintain import runs
from strandline.ledger.reconcile import reconcile_runs
from strandline.serve.auth.needs import Needs
from strandline.serve.pages import live
from strandline.serve.snapshot import only_of
from strandline.status.receive import ReceiveStatus, WaitingBodies
from tests.serve.conftest import API, COLUMNS, Served
from tests.serve.test_api import add_sink
from tests.serve.test_roles import routes

HIDDEN, UNKNOWN = "secret-one", "nosuch-one"  # as long as each other
DATASET, SINK = "DATASET", "SINK"  # in a request, where a name stands


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


def hidden_run_and_task(served: Served) -> tuple[str, str]:
    new = runs.NewRun(served.lake.dataset("other").id, runs.MaintenanceKind.COMPACT, "node-1")
    with served.lake.ledger.write() as connection:
        run = runs.begin(connection, new, lease_seconds=60)
        return str(run), str(tasks.begin(connection, "tick", HIDDEN, "node-1", lease_seconds=60)[0].id)


# What a request needs to name a dataset or a sink otherwise than in its path: in its body, or in its query.
BODIES: dict[str, dict[str, object]] = {
    "POST /sinks": {"name": "new", "dataset": DATASET, "kind": "forward", "options": {"url": "http://127.0.0.1:1/x"}},
    "PATCH /sinks/{name}": {"unset": ["path"]},
    "POST /sinks/{name}/tick": {},
    "POST /sinks/{name}/reset": {"to": "beginning"},
    "POST /sinks/{name}/recover": {},
    "POST /sinks/{name}/verify": {},
    "PATCH /datasets/{name}": {"drop": ["text"]},
    "POST /quarantined-rows/replay": {"sink": SINK, "all": True},
    "POST /quarantined-rows/discard": {"sink": SINK, "all": True},
    **{f"POST /maintenance/{kind}": {"dataset": DATASET} for kind in ("compact", "retain", "expire")},
    "POST /maintenance/purge": {"dataset": DATASET, "where": "true"},
    "POST /replication/bodies": {"dataset": DATASET, "batch_id": "x"},
}
QUERIES = {
    "GET /maintenance/runs": f"dataset={DATASET}",
    "GET /quarantined-rows": f"sink={SINK}",
    "GET /quarantine/rows": f"sink={SINK}",
    "GET /replication/segment": f"lo=1&hi=1&dataset={DATASET}",
}
# They name nothing: they show what the token may see.
LISTS = {
    *(f"GET {path}" for path in ("/status", "/datasets", "/sinks", "/tasks", "/reconciliation/status", "/session")),
    *(f"GET {path}" for path in ("/maintenance/runs", "/quarantined-rows")),
    *(f"GET /replication/{path}" for path in ("status", "shards", "followers")),
    *(f"GET {page}" for page in ("/", "/quarantine/rows", "/drift", "/runs", "/replication")),
}
OF_THE_CALLER = {"DELETE /session", "GET /live"}  # its own session; a test below is about the stream
REPLICATION = {"POST /replication/offer", "POST /replication/acknowledge"}  # `test_replication.py` is about them


@pytest.mark.parametrize("dry_run", [False, True])
def test_no_route_tells_a_hidden_name_from_one_that_does_not_exist(
    served: Served, limited: httpx.Client, dry_run: bool
) -> None:
    run, task = hidden_run_and_task(served)
    seen, named = set[str](), set[str]()
    for path, method, declared in routes(served.lake):
        if not isinstance(declared, Needs) or declared.whole_lake:
            continue
        route = f"{method} {path.removeprefix(API)}"
        seen.add(route)
        if route not in BODIES and route not in QUERIES and "{" not in path:
            continue
        named.add(route)
        kinds = {
            DATASET: ("other", "nosuch", "gone"),  # `gone` was one of its own
            SINK: (HIDDEN, UNKNOWN), "RUN": (run, "777777"), "TASK": (task, "777777"),
        }  # fmt: skip
        place = path.replace("{run}", "RUN").replace("{task}", "TASK")
        place = place.replace("{name}", DATASET if "/datasets/" in path else SINK)
        query = [QUERIES[route]] if route in QUERIES else []
        text = json.dumps(BODIES.get(route, {}) | ({"dry_run": True} if dry_run else {}))
        if method == "DELETE":
            query, text = [f"dry_run={dry_run}"], ""
        whole_place = "?".join([place, *query])
        [kind] = {k for k in kinds if k in whole_place + text}
        answers = []
        for name in kinds[kind]:
            sent = text.replace(kind, name).encode() if method in ("POST", "PATCH") else None
            at = whole_place.replace(kind, name)
            answers.append(limited.request(method, at, content=sent, headers={"Content-Type": "application/json"}))
        words = [f"no run {name}" if kind in ("RUN", "TASK") else name for name in kinds[kind]]
        first, *others = (whole(answer, said) for answer, said in zip(answers, words, strict=True))
        assert all(other == first for other in others), route
        is_malformed = dry_run and first[0] == 422  # not every body may say `dry_run`
        assert is_malformed or first[0] == 404, route
        assert "default.other" not in first[2] and HIDDEN not in first[2], route
    assert seen - named - LISTS - OF_THE_CALLER - REPLICATION == set(), "a new route is named here, and what it takes"
    assert seen >= {*BODIES, *QUERIES, *LISTS}, "a route that is gone is taken out here"


def test_no_list_shows_a_hidden_name(served: Served, admin: httpx.Client, limited: httpx.Client) -> None:
    hidden_run_and_task(served)
    assert HIDDEN in admin.get(f"{API}/tasks").text, "there is something to hide"
    assert "default.other" in admin.get(f"{API}/maintenance/runs").text
    for route in LISTS:
        at = route.removeprefix("GET ")
        for place in {at, f"{API}{at}"}:
            shown = limited.get(place)
            if shown.status_code != 404:  # pages and routes of the API are named alike
                assert shown.status_code == 200, place
                assert "default.other" not in shown.text and HIDDEN not in shown.text, place
    for place in ("/datasets?search=other", "/sinks?search=secret", f"{API}/tasks?subject={HIDDEN}"):
        shown = limited.get(place)
        assert shown.status_code == 200 and "default.other" not in shown.text, place
        assert HIDDEN not in shown.text, place


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
        tasks.end(connection, lease, tasks.TaskOutcome.REFUSED, error=error)
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


FOUND = SweepOutcome(
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
    said = re.sub(r"<time[^>]*>", "", page.partition('<main id="main"')[2]).replace("other way", "")
    for hidden in ("471", "4,71", "4.71", "other", "shrunk", "partial"):
        assert hidden not in said, hidden


def test_adding_a_sink_at_a_place_that_is_taken_does_not_tell_a_limited_token_by_whom(
    served: Served, admin: httpx.Client, limited: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {name: f"http://receiver.invalid/v1/datasets/{name}/rows" for name in ("other", "mine")}
    with served.lake.ledger.write() as connection:
        for name, url in urls.items():
            sinks.add(
                connection, instance=uuid4().hex, name=f"to-{name}", kind="forward",
                dataset=served.lake.dataset(name).id, options={"url": url}, destination=url, start=None,
            )  # fmt: skip

    def add(client: httpx.Client, url: str) -> httpx.Response:
        body = {"name": "new", "dataset": "mine", "kind": "forward", "options": {"url": url}}
        return client.post(f"{API}/sinks", json=body)

    def check(whose: str) -> None:
        found, told = (add(client, urls["other"]) for client in (limited, admin))
        assert whose in told.json()["detail"], "whoever sees the whole lake is told"
        assert (found.status_code, found.json()["type"]) == (409, told.json()["type"])
        assert "to-other" not in found.text and "default.other" not in found.text

    check("sink to-other")
    assert "sink to-mine" in add(limited, urls["mine"]).json()["detail"], "its own it may know"

    def claimed_by_another(*_: object, **__: object) -> None:
        raise DestinationTaken("it belongs to default.other", hint="Choose another place.", dataset="default.other")

    monkeypatch.setattr(Delivery, "add", claimed_by_another)
    check("default.other")


LENT = [
    ("files", {"path": "/anywhere"}),
    ("s3", {"url": "s3://any/place"}),
    ("postgres", {"dsn": "postgresql://any/base", "table": "t"}),
    ("iceberg", {"catalog": "/any/catalog.db", "table": "a.b"}),
    ("of another package", {}),
    ("forward", {"url": "http://receiver.invalid/x", "token": "env:LENT"}),
    ("forward", {"url": "http://receiver.invalid/x", "token": "file:/etc/hostname"}),
    ("forward", {"url": "http://receiver.invalid/x", "ca": "/etc/hostname"}),
    ("forward", {"url": "env:LENT"}),
    ("forward", {"url": "http://receiver.invalid/x", "success_header": "env:LENT"}),
]


def test_a_limited_token_gets_nothing_of_the_server_through_a_sink(limited: httpx.Client) -> None:
    for kind, options in LENT:
        body = {"name": "new", "dataset": "mine", "kind": kind, "options": options}
        refused = limited.post(f"{API}/sinks", json=body)
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:strandline:problem:wrong-scope"), options
    assert limited.get(f"{API}/sinks").json()["sinks"] == []


def test_a_limited_token_changes_only_options_that_every_kind_has(
    admin: httpx.Client, limited: httpx.Client, tmp_path: Path
) -> None:
    assert add_sink(admin, tmp_path / "out", "own", "mine").status_code == 201
    for body in ({"options": {"path": "/anywhere"}}, {"unset": ["path"]}, {"options": {"token": "env:LENT"}}):
        refused = limited.patch(f"{API}/sinks/own", json=body)
        assert refused.status_code == 403, refused.text
    changed = limited.patch(f"{API}/sinks/own", json={"options": {"batch_rows_min": "7"}})
    assert changed.status_code == 200 and changed.json()["options"]["batch_rows_min"] == "7"
    page = limited.get("/sinks").text
    assert ">forward</option>" in page and ">files</option>" not in page


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
    spooled = ReceiveStatus("default.other", 1, 2, 3, None, (), WaitingBodies(0, 0, 0), dropped=False)
    nothing, something = (replace(served.lake.status(), receive=r) for r in (None, (spooled,)))
    assert only_of(nothing, ("default.mine",)) == only_of(something, ("default.mine",))
