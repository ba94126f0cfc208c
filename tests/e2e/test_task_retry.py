"""Tasks that die and are run again, in a Spark of their own: the same rows get the same numbers.

The program below runs in another process, because only there may tasks fail: a local Spark gives up at the first one
unless its master says otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline.iceberg.schema.schema_file import parse_columns
from tests.conftest import MakeHome

PARTITIONS = 4
ROWS = 2_000
"""In each partition, of a kilobyte each: together far more than the driver may receive."""
TIMEOUT_SECONDS = 300

Source = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def rows(kill: str, markers: Path) -> Source:
    """Partition 1 dies once in each pass, counting and writing: before it gave a row, or with half of them given."""

    def source(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        at = 0 if context is None else context.partitionId()
        for _ in batches:
            pass
        passed = "writing" if (markers / "writing").exists() else "counting"
        marker = markers / f"killed-{passed}"
        dies = at == 1 and not marker.exists()
        for half in range(2):
            if dies and (half == 1 or kill == "before"):
                marker.touch()
                if kill == "worker":
                    os._exit(1)
                raise RuntimeError("this task dies once")
            ids = [at * ROWS + half * (ROWS // 2) + i for i in range(ROWS // 2)]
            yield pa.RecordBatch.from_pydict(
                {"n": pa.array(ids, pa.int64()), "text": pa.array(["x" * 1000] * len(ids))}
            )

    return source


def run(home: Path, kill: str) -> dict[str, Any]:
    markers = home / kill
    markers.mkdir()
    with strandline.open(home) as lake:
        name = f"retried_{kill}"
        lake.create_dataset(name, parse_columns([{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]))
        empty = lake.spark.range(0, PARTITIONS, 1, PARTITIONS)
        df = empty.mapInArrow(rows(kill, markers), "n long, text string")

        def when(step: str, count: int | None) -> None:
            if step == "writing":
                (markers / "writing").touch()

        done = lake.append(name, df, batch_id="b", progress=when)
        found = lake.spark.sql(
            "SELECT count(*) AS rows, count(DISTINCT _ingest_seq) AS numbers, min(_ingest_seq) AS lo, "
            f"max(_ingest_seq) AS hi, count(DISTINCT n) AS ns, max(n) AS last FROM lake.default.{name}"
        ).collect()[0]
        assert done.rows is not None
        misplaced = f"SELECT count(*) AS wrong FROM lake.default.{name} WHERE n <> _ingest_seq - {done.rows.lo}"
        ordered = lake.spark.sql(misplaced).collect()[0]
        killed = sorted(p.name for p in markers.glob("killed-*"))
        again = lake.append(name, df, batch_id="b").duplicate
        return {**found.asDict(), **ordered.asDict(), "killed": killed, "again": again}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("retry")
    make_home(home, {"spark": {"master": "local[2,4]", "options": {"spark.driver.maxResultSize": "1m"}}})
    strandline.init_lake(home).close()
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.test_task_retry", str(home), "before", "after", "worker"],
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=os.environ | {"TZ": "Asia/Kolkata"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kill", ["before", "after", "worker"])
def test_a_task_that_dies_and_runs_again_changes_no_number(outcome: dict[str, Any], kill: str) -> None:
    found = outcome[kill]
    assert found["killed"] == ["killed-counting", "killed-writing"], "the task did die, in both passes"
    everything = PARTITIONS * ROWS
    assert found["rows"] == found["numbers"] == found["ns"] == everything == found["hi"] - found["lo"] + 1
    assert found["last"] == everything - 1 and found["wrong"] == 0
    assert found["again"], "and the batch is the same one when it is offered again"


def main(home: Path, kills: list[str]) -> None:
    print(json.dumps({kill: run(home, kill) for kill in kills}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
