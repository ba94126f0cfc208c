"""Work that a request began and another calls off: it ends as cancelled before its next durable step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.core.calling_off import Stopping
from strandline.core.errors import StorageError
from strandline.core.roles import Role
from strandline.deliver.facade import Delivery
from strandline.deliver.quarantine.content import QuarantineObjects
from strandline.deliver.quarantine.replay import _Replaying
from strandline.deliver.sinks.blobs.blob_sink import ObjectSink
from strandline.lake import Lake, open_lake
from strandline.maintain.facade import Maintenance
from strandline.serve.work import LongWork
from tests.serve.conftest import API, COLUMNS, Served, serving
from tests.serve.test_dry_runs import add_sink, refuse_rows
from tests.waiting import eventually


class Held:
    """A step that waits, where it is reached, until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.let = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.let.wait(60)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.let.set()


@pytest.mark.parametrize(
    ("asked", "body", "step"),
    [
        ("reset", {"to": "beginning"}, (ObjectSink, "claimed")),
        ("reset", {"to": "beginning", "dry_run": True}, (ObjectSink, "claimed")),
        ("recover", {}, (ObjectSink, "claimed")),
        ("tick", {"dry_run": True}, (Delivery, "preview")),
    ],
)
def test_a_task_of_a_sink(
    served: Served,
    admin: httpx.Client,
    dataset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: Held,
    asked: str,
    body: dict[str, Any],
    step: tuple[type, str],
) -> None:
    add_sink(admin, tmp_path / "out")
    before = admin.get(f"{API}/sinks/partner").json()
    real = getattr(*step)

    def slow(*arguments: Any, **options: Any) -> Any:
        held.wait()
        return real(*arguments, **options)

    monkeypatch.setattr(*step, slow)
    begun = admin.post(f"{API}/sinks/partner/{asked}", json=body)
    assert begun.status_code == 202, begun.text
    place = begun.json()["place"]
    assert held.reached.wait(60)
    asked_off = admin.post(f"{place}/cancel")
    assert asked_off.status_code == 200 and asked_off.json()["stop_asked_at"] and asked_off.json()["outcome"] is None
    held.let.set()
    eventually(lambda: admin.get(place).json()["ended_at"])
    found = admin.get(place).json()
    assert found["kind"] == (f"{asked}_dry_run" if body.get("dry_run") else asked)
    assert (found["outcome"], found["error"]["type"]) == ("cancelled", "CalledOff"), found
    assert admin.get(f"{API}/sinks/partner").json()["generation"] == before["generation"]
    events = {e["event"] for e in admin.get(f"{API}/audit").json()["events"]}
    assert not events & {"sink.reset", "sink.recovered"}
    assert admin.post(f"{place}/cancel").json()["outcome"] == "cancelled", "it stays as it is"
    assert admin.post(f"{API}/tasks/999/cancel").status_code == 404


@pytest.mark.parametrize(
    ("asked", "step"),
    [
        ("add_sink", (Delivery, "_check_where")),
        ("add_sink", (ObjectSink, "claimed")),
        ("add_sink", (ObjectSink, "prepare")),
        ("update_sink", (Delivery, "_check_where")),
        ("update_sink", (ObjectSink, "prepare")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_a_sink_with_a_condition(
    admin: httpx.Client,
    dataset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: Held,
    asked: str,
    step: tuple[type, str],
) -> None:
    monkeypatch.setattr(Delivery, "_check_where", lambda *_: None)  # which is Spark's
    place, where = tmp_path / "out" / "partner", {"where": "id > 1"}
    if asked == "update_sink":
        add_sink(admin, tmp_path / "out")
        before = admin.get(f"{API}/sinks/partner").json()["options"]
    real = getattr(*step)

    def slow(*given: Any, **options: Any) -> Any:
        held.wait()
        return real(*given, **options)

    monkeypatch.setattr(*step, slow)
    if asked == "add_sink":
        new = {"name": "partner", "dataset": dataset, "kind": "files", "options": {"path": str(place)} | where}
        begun = admin.post(f"{API}/sinks", json=new)
    else:
        begun = admin.patch(f"{API}/sinks/partner", json={"options": where})
    assert begun.status_code == 202 and held.reached.wait(60), begun.text
    task = begun.json()["place"]
    assert admin.post(f"{task}/cancel").status_code == 200
    held.let.set()
    eventually(lambda: admin.get(task).json()["ended_at"])
    found = admin.get(task).json()
    assert (found["kind"], found["outcome"]) == (asked, "cancelled"), found
    if asked == "add_sink":
        assert admin.get(f"{API}/sinks").json()["sinks"] == []
        assert not [path for path in place.rglob("*") if path.is_file()], "nobody has claimed it"
    else:
        assert admin.get(f"{API}/sinks/partner").json()["options"] == before


def hold_compaction(monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    """Compactions wait at their first step, without Spark, and must be called off there."""

    def compact(self: Maintenance, target: Any, dry_run: bool, progress: Any, alive: Any) -> Any:
        held.wait()
        alive()
        raise AssertionError("it went on")

    monkeypatch.setattr(Maintenance, "_compact", compact)


def test_a_run_of_maintenance(admin: httpx.Client, dataset: str, monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    hold_compaction(monkeypatch, held)
    place = admin.post(f"{API}/maintenance/compact", json={"dataset": dataset}).json()["place"]
    assert held.reached.wait(60)
    asked_off = admin.post(f"{place}/cancel")
    assert asked_off.status_code == 200 and asked_off.json()["stop_asked_at"] and asked_off.json()["outcome"] is None
    held.let.set()
    eventually(lambda: admin.get(place).json()["ended_at"])
    found = admin.get(place).json()
    assert (found["outcome"], found["reason"]) == ("skipped", "it was called off")
    assert admin.post(f"{place}/cancel").json() == found
    assert admin.post(f"{API}/maintenance/runs/999/cancel").status_code == 404


def test_a_discard_of_rows(
    served: Served, admin: httpx.Client, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held
) -> None:
    add_sink(admin, tmp_path / "out")
    refuse_rows(served.lake, *range(1, 251))
    remove = QuarantineObjects.remove

    def slow(self: QuarantineObjects, name: str) -> None:
        held.wait()
        remove(self, name)

    monkeypatch.setattr(QuarantineObjects, "remove", slow)
    begun = admin.post(f"{API}/quarantined-rows/discard", json={"sink": "partner", "all": True})
    assert begun.status_code == 202, begun.text
    place = begun.json()["place"]
    assert held.reached.wait(60)
    assert admin.post(f"{place}/cancel").json()["outcome"] is None
    held.let.set()
    eventually(lambda: admin.get(place).json()["ended_at"])
    found = admin.get(place).json()
    assert (found["kind"], found["subject"], found["outcome"]) == ("discard", "partner", "cancelled"), found
    left = admin.get(f"{API}/quarantined-rows", params={"limit": 1000}).json()["rows"]
    assert [row["number"] for row in left] == list(range(101, 251)), "what it had finished stays"
    [told] = admin.get(f"{API}/audit", params={"event": "quarantine.discarded"}).json()["events"]
    assert (told["detail"]["rows"], told["detail"]["numbers"]) == (100, list(range(1, 101))), "and nothing else is told"


def replaying(served: Served, admin: httpx.Client, folder: Path, monkeypatch: pytest.MonkeyPatch, held: Held) -> str:
    """The place of a replay of five rows that waits in the third."""
    add_sink(admin, folder)
    refuse_rows(served.lake, *range(1, 6))
    remove, removed = QuarantineObjects.remove, list[str]()

    def slow(self: QuarantineObjects, name: str) -> None:
        removed.append(name)
        if len(removed) == 3:
            held.wait()
        remove(self, name)

    monkeypatch.setattr(QuarantineObjects, "remove", slow)
    # The sink has them: an earlier replay landed, and nobody was told.
    monkeypatch.setattr(_Replaying, "_ask", lambda self, wanted: {row.seq for row in wanted})
    begun = admin.post(f"{API}/quarantined-rows/replay", json={"sink": "partner", "all": True})
    assert begun.status_code == 202, begun.text
    assert held.reached.wait(60)
    place: str = begun.json()["place"]
    return place


def audited(admin: httpx.Client, event: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.get(f"{API}/audit", params={"event": event}).json()["events"]
    return found


# Of what another process has stored it hears when it renews its lease.
@pytest.mark.parametrize("through", ["the same process", "another process"])
def test_a_replay_of_rows_says_how_far_it_came_and_who_called_it_off(
    served: Served,
    admin: httpx.Client,
    dataset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: Held,
    quick_heartbeats: None,
    through: str,
) -> None:
    place = replaying(served, admin, tmp_path / "out", monkeypatch, held)
    with ExitStack() as stack:
        url = served.url
        if through == "another process":
            other = stack.enter_context(open_lake(served.lake.config.home))
            url = stack.enter_context(serving(other))
        secret = served.token("the night watch", Role.ADMIN)
        watch = stack.enter_context(Served(served.lake, url, {}).client(secret))
        called_off = threading.Event()
        real = Stopping.call_off

        def noting(self: Stopping, by: str | None) -> None:
            real(self, by)
            called_off.set()

        monkeypatch.setattr(Stopping, "call_off", noting)
        assert watch.post(f"{place}/cancel").json()["outcome"] is None
        assert called_off.wait(60), "the process that works has not heard of it"
        assert watch.post(f"{place}/cancel").status_code == 200, "once more changes nothing"
    held.let.set()
    eventually(lambda: admin.get(place).json()["ended_at"])
    found = admin.get(place).json()
    assert (found["outcome"], found["error"]["type"], found["actor"]) == ("cancelled", "CalledOff", "the admin"), found
    [told] = audited(admin, "quarantine.replayed")
    assert told["actor"] == "the admin" and told["detail"] == {
        "sink": "partner", "tried": 3, "replayed": 3, "numbers": [1, 2, 3], "called_off": True,
        "called_off_by": "the night watch",
    }  # fmt: skip
    [asked] = audited(admin, "task.called_off")
    assert asked["actor"] == "the night watch" and asked["detail"] == {
        "task": found["task"], "kind": "replay", "subject": "partner",
    }  # fmt: skip
    left = admin.get(f"{API}/quarantined-rows").json()["rows"]
    assert [row["number"] for row in left] == [4, 5]


def test_a_replay_that_ends_with_its_process_says_how_far_it_came(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held
) -> None:
    secret = lake.receiver.create_token("the admin", role=Role.ADMIN)[1]
    real = LongWork.call_all_off

    def ending(self: LongWork) -> Any:
        found = real(self)
        held.let.set()
        return found

    monkeypatch.setattr(LongWork, "call_all_off", ending)
    with serving(lake) as url:
        served = Served(lake, url, {Role.ADMIN: secret})
        with served.as_role() as admin:
            assert admin.post(f"{API}/datasets", json={"name": "events", "columns": COLUMNS}).status_code == 201
            place = replaying(served, admin, tmp_path / "out", monkeypatch, held)
    ended = lake.tasks.get(int(place.rpartition("/")[2]))
    assert ended.outcome is not None and ended.outcome.value == "cancelled"
    [told] = [e for e in lake.audit_events(100) if e.event == "quarantine.replayed"]
    assert (told.detail["replayed"], told.detail["called_off"], told.detail["called_off_by"]) == (3, True, None)


def test_a_replay_that_fails_in_between_says_how_far_it_came(
    served: Served, admin: httpx.Client, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held
) -> None:
    def fail() -> None:
        held.reached.set()
        raise StorageError("the bucket is away")

    monkeypatch.setattr(held, "wait", fail)
    place = replaying(served, admin, tmp_path / "out", monkeypatch, held)
    eventually(lambda: admin.get(place).json()["ended_at"])
    found = admin.get(place).json()
    assert (found["outcome"], found["error"]["type"]) == ("failed", "StorageError")
    [told] = audited(admin, "quarantine.replayed")
    assert told["detail"] == {
        "sink": "partner", "tried": 3, "replayed": 3, "numbers": [1, 2, 3], "failed": "StorageError",
    }  # fmt: skip
    left = admin.get(f"{API}/quarantined-rows").json()["rows"]
    assert [row["number"] for row in left] == [4, 5]
