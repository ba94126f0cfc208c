"""Runs that act beside the lake's own writing, compaction and expiry, with no grace at all: what protects files under
way is only that their blocks and jobs are on record."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import strandline
from strandline import Lake
from strandline.core.records.reconcile_records import ReconcileRun
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.schema.schema_file import parse_columns
from tests.reconcile.no_grace import NO_GRACE_HOURS
from tests.spark.protocol import COLUMNS, frame, ids

ROUNDS = 6
ROWS = 10
SETTINGS = {"reconcile": {"grace_hours": NO_GRACE_HOURS, "clock_skew_seconds": 0, "deletes_max_share": 1.0}}


def strays(lake: Lake, n: int) -> list[Path]:
    """Old ones, which every run may take."""
    folder = Path(lake.config.warehouse_folder or "") / "default" / "events" / "data"
    found = [folder / f"stray-{n}-{m}.parquet" for m in range(2)]
    for path in found:
        path.write_bytes(b"x")
        os.utime(path, (1e9, 1e9))
    return found


def test_no_row_is_lost_beside_runs_that_act_and_every_stray_file_is_found(
    tmp_path: Path, make_home: Callable[..., LakeConfig]
) -> None:
    make_home(tmp_path, SETTINGS)
    with strandline.init_lake(tmp_path) as lake:
        lake.create_dataset("events", parse_columns(COLUMNS))
        lake.append("events", frame(lake, 0))
        put: list[Path] = []
        compacted: list[int] = []
        trouble: list[BaseException] = []

        def write() -> None:
            try:
                for n in range(1, ROUNDS):
                    put.extend(strays(lake, n))
                    lake.append("events", frame(lake, ROWS * n))
                    if n % 2:
                        compacted.append(lake.maintenance.compact("events").result.files_written)
                        lake.maintenance.expire("events", older_than=timedelta(0), keep_min=1)
            except BaseException as e:
                trouble.append(e)

        writer = threading.Thread(target=write, name="writer")
        writer.start()
        runs: list[ReconcileRun] = []
        while writer.is_alive():
            runs.append(lake.reconcile(act=True))
        writer.join()
        assert not trouble, trouble
        assert any(compacted)
        runs.append(lake.reconcile(act=True))
        assert ids(lake) == list(range(ROWS * ROUNDS)) and len(runs) > 3
        assert not any(run.aborted for run in runs) and not any(run.outcome.done.missing for run in runs)
        assert not any(path.exists() for path in put)
        # Whatever else was set aside is what compaction and expiry had left.
        live = {row.file_path.removeprefix("file:") for row in lake.spark.table("lake.default.events.files").collect()}
        assert live and all(Path(path).exists() for path in live)
