"""A warehouse whose disk is full: a clear error, nothing half-visible, and with room the same batch goes in, once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import strandline
from strandline.core.errors import FailedError, StorageError
from strandline.iceberg.schema.schema_file import parse_columns
from tests.conftest import MakeHome, missing
from tests.spark.protocol import outlive_lease

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.lake import Lake

SIZE_MEGABYTES = 32
ROWS = 6_000
"""About six megabytes, which do not fit while the ballast is there."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MEGABYTES}m", "tmpfs", str(folder)]
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        missing(f"no small disk can be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def wide(lake: Lake, rows: int) -> DataFrame:
    """A kilobyte a row that does not compress."""
    text = "concat_ws('', transform(sequence(1, 16), i -> sha2(concat(id, '-', i), 256)))"
    return lake.spark.sql(f"SELECT id AS n, {text} AS text FROM range(0, {rows}, 1, 2)")


def test_a_full_disk_fails_the_batch_and_leaves_nothing_half_visible(
    small_disk: Path, tmp_path: Path, make_home: MakeHome, spark: SparkSession
) -> None:
    home = tmp_path / "home"
    make_home(home, {"warehouse": {"url": str(small_disk / "warehouse")}, "ingest": {"lease_seconds": 1}})
    with strandline.init_lake(home) as lake:
        lake.create_dataset("big", parse_columns([{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]))
        lake.append("big", wide(lake, 100), batch_id="fits")
        ballast = small_disk / "ballast"
        _fill(ballast, leave=1 << 20)
        with pytest.raises(FailedError) as failed:
            lake.append("big", wide(lake, ROWS), batch_id="big")
        assert isinstance(failed.value, StorageError) and "full" in failed.value.message and failed.value.hint
        _fill(ballast, leave=0)  # not even the witness can be written now
        with pytest.raises(FailedError):
            lake.append("big", wide(lake, ROWS), batch_id="big")
        assert len(list(lake.read_since("big", columns=["n"]))) == 100, "what was there can still be read"
        ballast.unlink()
        outlive_lease(lake)
        lake.recover()
        assert lake.status().datasets[0].open_blocks == 0
        done = lake.append("big", wide(lake, ROWS), batch_id="big")
        assert done.row_count == ROWS and not done.duplicate
        assert lake.append("big", wide(lake, ROWS), batch_id="big").duplicate
        numbers = [r[0] for r in lake.spark.sql("SELECT _ingest_seq FROM lake.default.big").collect()]
        assert len(numbers) == len(set(numbers)) == ROWS + 100
        assert len(list(lake.read_since("big", columns=["n"]))) == ROWS + 100
        branches = lake.spark.sql("SELECT name FROM lake.default.big.refs WHERE type = 'BRANCH'").collect()
        assert [r[0] for r in branches] == ["main"]


def _fill(path: Path, *, leave: int) -> None:
    """Until no more than so many bytes are left."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            while leave == 0 or shutil.disk_usage(path).free > leave:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    break
