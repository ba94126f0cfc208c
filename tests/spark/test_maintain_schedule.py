"""Maintenance by schedule, on a real table: the daemon's loop does what is due, and delivery goes on beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import strandline
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset
from strandline.jobs.loop import LoopControl
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceRun
from tests.spark.lakes import count, create, numbers, sql, values
from tests.spark.upkeep import data_files


class RecordEnded:
    """Keeps the runs that ended."""

    def __init__(self, ended: list[MaintenanceRun]) -> None:
        self._ended = ended

    def scheduled(self, crons: Mapping[str, str], unused_rules: Sequence[str]) -> None: ...

    def begun(self, dataset: Dataset, kind: MaintenanceKind) -> None: ...

    def ended(self, run: MaintenanceRun) -> None:
        self._ended.append(run)


def test_what_is_due_runs_beside_delivery_and_nothing_is_missed(
    tmp_path: Path, make_home: Callable[..., LakeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.maintain.facade._POLL_SECONDS", 0.2)
    every = "* * * * * *"
    schedules = {"compact_schedule": every, "retain_schedule": every, "expire_schedule": every}
    settings = {
        "maintain": schedules | {"number_schedule": every},
        "maintain.retain.events": {"older_than": "0s"},
        "maintain.expire": {"older_than": "0s", "keep_min": 1},
    }
    make_home(tmp_path, settings)
    with strandline.init_lake(tmp_path) as lake:
        create(lake, "events", {"n": "long"})
        sql(lake, "CREATE TABLE lake.default.others (n BIGINT) USING iceberg")
        lake.adopt_dataset("others")
        lake.delivery.add("out", "events", "files", {"path": str(tmp_path / "out"), "format": "jsonl"})
        stopping, ended = threading.Event(), list[MaintenanceRun]()
        with ThreadPoolExecutor(1) as pool:
            loop = pool.submit(lake.maintenance.run, LoopControl(stopping), RecordEnded(ended))
            try:
                for n in range(4):
                    lake.append("events", numbers(lake, 10 * n + 1, 10 * n + 10))
                    lake.tick()
                    sql(lake, f"INSERT INTO lake.default.others (n) VALUES ({n})")
                deadline = time.monotonic() + 200
                while time.monotonic() < deadline and (
                    count(lake, "events")
                    or count(lake, "others", "_ingest_seq IS NULL")
                    or {r.kind.value for r in ended} != {"compact", "retain", "expire", "number"}
                ):
                    time.sleep(0.1)
            finally:
                stopping.set()
            loop.result(200)
        finished = [r for r in ended if r.reason is None or "called off" not in r.reason]  # the stop may meet one
        assert len(finished) >= len(ended) - 1 and {r.outcome for r in finished} == {"done"}, [r.reason for r in ended]
        assert count(lake, "events") == 0 and data_files(lake, "events") == 0 and values(lake, "events") == []
        assert sorted(values(lake, "others")) == [0, 1, 2, 3], "nobody ran `dataset adopt` since"
        assert sum(r.result["rows"] for r in ended if r.kind is MaintenanceKind.NUMBER and r.result) == 4
        assert lake.delivery.verify().ok
        [sink] = lake.status().sinks
        assert (sink.exported, sink.held_rows, sink.lost_rows) == (40, 0, 0)
