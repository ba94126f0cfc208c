"""Work that a request began and another calls off: it ends as cancelled before its next durable step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.deliver.facade import Delivery
from strandline.deliver.quarantine.content import QuarantineObjects
from strandline.deliver.sinks.blobs.blob_sink import ObjectSink
from strandline.maintain.facade import Maintenance
from tests.serve.conftest import API, Served, eventually
from tests.serve.test_dry_runs import add_sink, refuse_rows


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


def hold_compaction(monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    """Compactions wait at their first step, without Spark, and must be called off there."""

    @contextmanager
    def without_jobs(self: Maintenance, control: Any) -> Iterator[None]:
        yield

    def compact(self: Maintenance, target: Any, dry_run: bool, progress: Any, alive: Any) -> Any:
        held.wait()
        alive()
        raise AssertionError("it went on")

    monkeypatch.setattr(Maintenance, "_cancelling_jobs", without_jobs)
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
