"""A lake of which one bit of one metadata file is flipped before each run: no live file moves, no entry is dropped, and
no run ends because of it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StringType

from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.reconcile import survey
from strandline.reconcile.storage.pool import Pool
from tests.reconcile.conftest import live_files
from tests.reconcile.whole_lakes import ACT, WholeLake, there

OTHER = "other.t"
WHOLE_SETTINGS = {
    "history_runs": 1,
    "quarantine_days": 0,
    "deletes_max_share": 1.0,
    "references_shrink_max": 1.0,
    "share_floor_files": 1_000_000,
}


class FlippedLake(WholeLake):
    """PyIceberg wrote it: a dataset with three blocks, and a table of somebody else's with files per partition,
    deletions and a tag. In each an orphan that is really one."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, **WHOLE_SETTINGS)
        for _ in range(3):
            self.append()
        self._make_other()
        self.strays = [
            self.put("stray.parquet"),
            _put(self.warehouse / "other" / "t" / "data" / "p=1" / "stray.parquet"),
        ]
        self.live = live_files(self.lake.catalog)
        self.metadata = sorted(path for path in self.live if "/metadata/" in path)
        self.before = self.pointers()

    def _make_other(self) -> None:
        catalog = self.lake.catalog._catalog
        schema = Schema(NestedField(1, "p", IntegerType()), NestedField(2, "v", StringType()))
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
        catalog.create_namespace_if_not_exists("other")
        table = catalog.create_table(OTHER, schema, partition_spec=spec)
        for letter in "ab":
            table.append(pa.table({"p": pa.array(range(6), pa.int32()), "v": [letter * (n + 1) for n in range(6)]}))
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()  # type: ignore[union-attr]
        table.delete(EqualTo("p", 3))
        table.append(pa.table({"p": pa.array([7, 8], pa.int32()), "v": ["x", "yy"]}))

    def flips(self, dice: random.Random, count: int) -> None:
        """Each followed by a run that acts, with every guard by share switched off."""
        before = self.run(ACT)
        assert before.aborted is None and before.outcome.done.orphans == 2 and not self.misplaced(), before
        for n in range(count):
            strays = self.put_back() if n % 4 == 0 else 0
            path = self.metadata[n % len(self.metadata)]
            bit = dice.randrange(8 * Path(path).stat().st_size)
            content = flip(path, bit)
            run = self.run(ACT)
            assert run.aborted is None, (path, bit, run.why)
            assert not self.misplaced(), (path, bit, run)
            assert run.outcome.done.missing == 0, (path, bit, run)
            assert run.outcome.done.orphans >= strays - 1, (path, bit, run)  # it costs one table, at most
            Path(path).write_bytes(content)
            assert self.pointers() == self.before, (path, bit)
        self.put_back()
        after = self.run(ACT)
        assert after.aborted is None and after.outcome.done.orphans == 2, after
        self.put_back()

    def pointers(self) -> list[str]:
        return [self.lake.catalog.load(name).metadata_location for name in self.lake.catalog.table_names()]

    def misplaced(self) -> list[str]:
        return [
            path for path, is_there in zip(sorted(self.live), there(sorted(self.live)), strict=True) if not is_there
        ]

    def put_back(self) -> int:
        """What a run rightly set aside comes back for the next one. How many there are."""
        for path in self.strays:
            _put(Path(path))
        return len(self.strays)


def _put(path: Path) -> str:
    path.write_bytes(b"orphan")
    at = time.time() - 864_000
    os.utime(path, (at, at))
    return str(path)


def flip(path: str, bit: int) -> bytes:
    """What it was before."""
    content = Path(path).read_bytes()
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    Path(path).write_bytes(flipped)
    return content


@contextmanager
def quick_runs(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What costs each run most of its time, and is the same for all of them, is done once."""
    pool = Pool()
    monkeypatch.setattr(pool, "close", lambda: None)  # the workers of one run serve the next
    monkeypatch.setattr(survey, "Pool", lambda: pool)
    # Listing the names takes PyIceberg half of a run's time.
    names = lake.lake.catalog.table_names()
    monkeypatch.setattr(PyIcebergCatalog, "table_names", lambda self: list(names))
    yield
    lake.lake.close()
    Pool.close(pool)
