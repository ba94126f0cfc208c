"""A leader with rows in several shards, and sites that follow it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import frames, lakes
from bench.measure import Bench
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake
from strandline.lake_admin import follow_lake

DATASET = "events"
SHARDS = 4
TOKEN = "STRANDLINE_BENCH_FOLLOWER"


@dataclass(frozen=True, slots=True)
class Leader:
    lake: Lake
    work: Path

    @classmethod
    def make(cls, bench: Bench) -> Leader:
        lake = lakes.new_lake(bench.work / "leader")
        lake.create_dataset(DATASET, parse_columns(frames.EVENT_COLUMNS), shards=SHARDS)
        _, os.environ[TOKEN] = lake.followers.add("bench")
        return cls(lake, bench.work)

    def append(self, first: int, rows: int, *, files: int) -> None:
        self.lake.append(DATASET, frames.events(self.lake.spark, first, rows, files), batch_id=f"batch-{first}")

    @contextmanager
    def followed(self, name: str, leader: str) -> Iterator[Lake]:
        """An empty site, on a disk that has nothing of it afterwards."""
        home = self.work / name
        try:
            with follow_lake(home, leader, token=f"env:{TOKEN}") as lake:
                yield lake
        finally:
            shutil.rmtree(home, ignore_errors=True)
