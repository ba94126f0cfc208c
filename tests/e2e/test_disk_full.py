"""A warehouse whose disk is full: a clear error, nothing half-visible, and with room the same batch goes in, once."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import strandline
from strandline.errors import FailedError, StorageError
from strandline.tables.schema_file import parse_columns
from tests.conftest import MakeHome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.lake import Lake

SIZE_MEGABYTES = 6


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MEGABYTES}m", "tmpfs", str(folder)]
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        why = f"no small disk can be mounted: {mounted.stderr.strip()}"
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"{why}, and a test run under CI must not leave anything out")
        pytest.skip(why)
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
        with pytest.raises(FailedError) as failed:
            lake.append("big", wide(lake, 20_000), batch_id="too-big")
        assert isinstance(failed.value, StorageError) and "full" in failed.value.message and failed.value.hint
        ballast = small_disk / "ballast"
        _fill(ballast)
        with pytest.raises(FailedError):
            lake.append("big", wide(lake, 1_200), batch_id="later")
        assert len(list(lake.read_since("big", columns=["n"]))) == 100, "what was there can still be read"
        ballast.unlink()
        time.sleep(1.1)
        lake.recover()
        assert lake.status().datasets[0].open_blocks == 0
        done = lake.append("big", wide(lake, 1_000), batch_id="later-but-smaller")
        assert done.row_count == 1_000
        first = lake.append("big", wide(lake, 1_200), batch_id="later")
        assert not first.duplicate and lake.append("big", wide(lake, 1_200), batch_id="later").duplicate
        numbers = [r[0] for r in lake.spark.sql("SELECT _ingest_seq FROM lake.default.big").collect()]
        assert len(numbers) == len(set(numbers)) == 2_300


def _fill(path: Path) -> None:
    """Until not one byte more fits."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    break
