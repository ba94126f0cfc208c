"""Dry runs of what cannot be undone: each says what would happen, changes nothing, is refused for the same reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from strandline.core.delivery_types import ChunkPlan, Intent, LanePlan
from strandline.core.read_token import Continuation
from strandline.core.records.reconcile_records import Asked, FindingKind, StorageKind, SweptState
from strandline.core.types import BlockKind, Lease, Seq, SeqRange
from strandline.lake import Lake
from strandline.ledger.deliver import intents, quarantine, sinks
from strandline.ledger.deliver.quarantine import StoredRefusedRow
from strandline.ledger.ingest import restored_blocks
from strandline.ledger.reconcile import quarantined_files, reconcile_runs
from strandline.ledger.reconcile.quarantined_files import NewSwept
from tests.serve.conftest import API, Served
from tests.waiting import eventually


def add_sink(admin: httpx.Client, folder: Path) -> None:
    made = admin.post(
        f"{API}/sinks",
        json={"name": "partner", "dataset": "events", "kind": "files", "options": {"path": str(folder)}},
    )
    assert made.status_code == 201, made.text


def test_a_dataset(admin: httpx.Client, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")
    dry = {"dry_run": "true"}
    refused = admin.delete(f"{API}/datasets/events", params=dry)
    assert refused.status_code == 409 and "partner" in refused.json()["detail"]
    assert refused.json() == admin.delete(f"{API}/datasets/events").json()
    assert admin.delete(f"{API}/sinks/partner").status_code == 200
    would = admin.delete(f"{API}/datasets/events", params=dry).json()
    assert would == {"dropped": dataset, "dry_run": True, "allocated": None}
    assert admin.get(f"{API}/datasets/events").status_code == 200
    assert admin.delete(f"{API}/datasets/events").json() == would | {"dry_run": False}
    assert admin.delete(f"{API}/datasets/events", params=dry).status_code == 404


def test_a_sink(admin: httpx.Client, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")
    would = admin.delete(f"{API}/sinks/partner", params={"dry_run": "true"}).json()
    assert would == {
        "removed": "partner",
        "dry_run": True,
        "destination": would["destination"],
        "lag_rows": 0,
        "open_intents": 0,
        "quarantined_rows": 0,
    }
    assert admin.get(f"{API}/sinks/partner").status_code == 200
    assert admin.delete(f"{API}/sinks/partner").json() == would | {"dry_run": False}
    assert admin.delete(f"{API}/sinks/partner", params={"dry_run": "true"}).status_code == 404


def test_a_reset(admin: httpx.Client, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")

    def task(body: dict[str, object]) -> dict[str, object]:
        place = admin.post(f"{API}/sinks/partner/reset", json=body).json()["place"]
        eventually(lambda: admin.get(place).json()["outcome"])
        found: dict[str, object] = admin.get(place).json()
        return found

    would = task({"to": "beginning", "dry_run": True})
    assert (would["kind"], would["outcome"]) == ("reset_dry_run", "done")
    assert would["result"] == {
        "sink": "partner",
        "generation": 2,
        "asked": None,
        "start": None,
        "floor": None,
        "sealed": None,
        "open_intents": 0,
    }
    assert admin.get(f"{API}/sinks/partner").json()["generation"] == 1
    assert task({"to": "no token", "dry_run": True})["error"] == task({"to": "no token"})["error"] is not None
    task({"to": "beginning"})
    assert admin.get(f"{API}/sinks/partner").json()["generation"] == 2


def test_columns(admin: httpx.Client, dataset: str) -> None:
    at, names = f"{API}/datasets/events", lambda found: [c["name"] for c in found.json()["columns"]]
    changes = {"drop": ["text"], "add": [{"name": "more", "type": "int"}]}
    would = admin.patch(at, json=changes | {"dry_run": True})
    assert would.json()["dry_run"] is True and names(would) == ["id", "more"]
    assert would.json()["changes"] == ["drop text", "add more: int"]
    assert names(admin.get(at)) == ["id", "text"]
    wrong = {"drop": ["nothing"]}
    refused = admin.patch(at, json=wrong | {"dry_run": True})
    assert refused.status_code == 400 and refused.json() == admin.patch(at, json=wrong).json()
    made = admin.patch(at, json=changes)
    assert made.json() == would.json() | {"dry_run": False} and names(made) == names(admin.get(at))


def test_a_recovery(admin: httpx.Client, served: Served, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")
    refuse_rows(served.lake, 2, 3)

    def recover(**wanted: bool) -> dict[str, object]:
        place = admin.post(f"{API}/sinks/partner/recover", json=wanted).json()["place"]
        eventually(lambda: admin.get(place).json()["outcome"])
        found: dict[str, object] = admin.get(place).json()
        assert found["outcome"] == "done", found
        return found

    def stored() -> dict[str, object]:  # all but the ages, which grow
        found = admin.get(f"{API}/sinks/partner").json()
        return {key: value for key, value in found.items() if key not in ("lag_seconds", "lanes")}

    before = stored()
    assert before["open_intents"]
    would = recover(accept_loss=True, dry_run=True)
    assert would["kind"] == "recover_dry_run" and would["result"] == recover(resend=True, dry_run=True)["result"]
    assert stored() == before
    assert not [e for e in admin.get(f"{API}/audit").json()["events"] if "recovered" in e["event"]]
    assert recover(accept_loss=True)["result"] == would["result"]
    assert stored()["open_intents"] == []


def one_by_one(until: int) -> tuple[ChunkPlan, ...]:
    """A chunk for each row."""
    return tuple(ChunkPlan(SeqRange(Seq(n), Seq(n)), 1) for n in range(1, until + 1))


@contextmanager
def planned(lake: Lake, until: int, lanes: Sequence[LanePlan]) -> Iterator[tuple[Lease, Sequence[Intent]]]:
    """The dataset has so many rows, and the sink an open intent in each of these lanes; with the sink's lease."""
    record, dataset = lake.delivery.get("partner"), lake.dataset("events")
    with lake.ledger.write() as connection:
        restored_blocks.insert_published(
            connection, dataset.id, SeqRange(Seq(1), Seq(until)), kind=BlockKind.RECOVERED, batch_id="rows"
        )
    lease = sinks.leases.take(lake.ledger, record.id, seconds=600)
    assert lease is not None
    stored = intents.store_plan(
        lake.ledger, lease, record, until=Seq(until), lanes=lanes, options={},
        token=lambda mark: Continuation(lake.id, dataset.uuid, mark).encode(),
    )  # fmt: skip
    assert stored is not None and len(stored) == len(lanes)
    yield lease, stored
    sinks.leases.release(lake.ledger, lease)


def refuse_rows(lake: Lake, *numbers: int) -> None:
    """The sink has refused these rows of the dataset."""
    until = max(numbers)
    with planned(lake, until, [LanePlan("", None, Seq(until), one_by_one(until))]) as (lease, [intent]):
        refused = [
            (c.id, StoredRefusedRow(intent.lane, c.rows.lo, "422: no", f"quarantine/{c.rows.lo}", 9, {}, "jsonl"))
            for c in intent.chunks
            if c.rows.lo in numbers
        ]
        assert quarantine.quarantine_rows(lake.ledger, lease, refused)


def test_quarantined_rows(served: Served, admin: httpx.Client, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")
    refuse_rows(served.lake, 2, 3)
    at, dry = f"{API}/quarantined-rows/discard", {"sink": "partner", "dry_run": True}
    would = admin.post(at, json=dry | {"all": True}).json()
    assert would == {"sink": "partner", "dry_run": True, "discarded": 2, "numbers": [2, 3]}
    assert admin.post(at, json=dry | {"numbers": [3]}).json()["numbers"] == [3]
    assert admin.post(at, json=dry | {"numbers": [1]}).status_code == 400
    assert admin.delete(f"{API}/sinks/partner", params={"dry_run": "true"}).json()["quarantined_rows"] == 2
    assert len(admin.get(f"{API}/quarantined-rows").json()["rows"]) == 2
    place = admin.post(at, json={"sink": "partner", "all": True}).json()["place"]
    eventually(lambda: admin.get(place).json()["outcome"])
    assert admin.get(place).json()["result"] == would | {"dry_run": False}
    assert admin.get(f"{API}/quarantined-rows").json()["rows"] == []


def test_quarantined_files(served: Served, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, at = served.lake, f"{API}/quarantined-files/purge"
    new = [NewSwept(FindingKind.ORPHAN, None, f"data/{n}", f"aside/{n}", 5 + n, None) for n in range(3)]
    with lake.ledger.write() as connection:
        run = reconcile_runs.start(connection, Asked(act=True), StorageKind.LOCAL)
        with monkeypatch.context() as long_ago:
            long_ago.setattr(quarantined_files, "utc_now", lambda: datetime(2020, 1, 1, tzinfo=UTC))
            files = quarantined_files.begin(connection, run, new[:2])
        files += quarantined_files.begin(connection, run, new[2:])
        quarantined_files.move(connection, files, SweptState.HELD)
    before = admin.get(f"{API}/quarantined-files").json()
    for wanted in ({}, {"run": run}):
        place = admin.post(at, json=wanted | {"dry_run": True}).json()["place"]
        eventually(lambda place=place: admin.get(place).json()["outcome"])
        found = admin.get(place).json()
        assert (found["kind"], found["outcome"]) == ("purge_files_dry_run", "done"), found
        assert found["result"] == {"files": 2, "bytes": 11, "waiting": 1, "paths": ["data/0", "data/1"]}
    assert admin.post(at, json={"run": run + 1, "dry_run": True}).status_code == 404
    assert admin.get(f"{API}/quarantined-files").json() == before and len(before["files"]) == 3
