"""One flipped bit somewhere in a table's metadata, and then `--act`: no live file moves, no entry is dropped, and no
run ends because of it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StringType

from strandline.drift import Run
from strandline.reconcile import survey
from strandline.reconcile.storage.pool import Pool
from tests.reconcile.conftest import live_files
from tests.reconcile.whole_lakes import ACT, WholeLake, there

FLIPS = 300 * (10 if os.environ.get("STRANDLINE_TORTURE") else 1)
OTHER = "other.t"
WHOLE_SETTINGS = {"history_runs": 1, "quarantine_days": 0, "deletes_max_share": 1.0, "references_shrink_max": 1.0, "share_floor_files": 1_000_000}


class FlippedLake(WholeLake):
    """A dataset with blocks of several files, and a table of somebody else's with files per partition, deletions and
    a tag. In each an orphan that is really one."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, **WHOLE_SETTINGS)
        for _ in range(3):
            self.append()
        self._make_other()
        self.strays = [self.put("stray.parquet"), self._put_other("p=1/stray.parquet")]
        self.live = live_files(self.lake.catalog)
        self.metadata = sorted(path for path in self.live if "/metadata/" in path)
        self.pointers = self._pointers()

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

    def _put_other(self, name: str) -> str:
        path = self.warehouse / "other" / "t" / "data" / name
        path.write_bytes(b"orphan")
        at = time.time() - 864_000
        os.utime(path, (at, at))
        return str(path)

    def _pointers(self) -> list[str]:
        return [self.lake.catalog.load(name).metadata_location for name in self.lake.catalog.table_names()]

    def act(self) -> Run:
        return self.run(ACT)

    def misplaced(self) -> list[str]:
        return [path for path, is_there in zip(sorted(self.live), there(sorted(self.live)), strict=True) if not is_there]

    def back(self) -> None:
        """What a run rightly set aside comes back for the next one."""
        for path in self.strays:
            if not Path(path).exists():
                Path(path).write_bytes(b"orphan")
                at = time.time() - 864_000
                os.utime(path, (at, at))


@pytest.fixture
def flipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlippedLake]:
    pool = Pool()
    monkeypatch.setattr(pool, "close", lambda: None, raising=False)
    monkeypatch.setattr(survey, "Pool", lambda: pool)
    lake = FlippedLake(tmp_path / "lake")
    yield lake
    lake.lake.close()
    Pool.close(pool)


@dataclass(frozen=True)
class Flip:
    path: str
    bit: int

    def do(self) -> bytes:
        content = Path(self.path).read_bytes()
        flipped = bytearray(content)
        flipped[self.bit // 8] ^= 1 << self.bit % 8
        Path(self.path).write_bytes(flipped)
        return content


def test_no_flipped_bit_moves_a_live_file_or_ends_a_run(flipped: FlippedLake) -> None:
    before = flipped.act()
    assert before.aborted is None and before.outcome.done.orphans == 2 and not flipped.misplaced()
    dice = random.Random(1_453)
    for n in range(FLIPS):
        flipped.back()
        path = flipped.metadata[n % len(flipped.metadata)]
        flip = Flip(path, dice.randrange(8 * Path(path).stat().st_size))
        content = flip.do()
        for _ in range(2):  # what the first drops, the second finds nowhere
            run = flipped.act()
            assert run.aborted is None, (flip, run.why)
            assert not flipped.misplaced(), (flip, run)
            assert run.outcome.done.missing == 0, (flip, run)
        Path(path).write_bytes(content)
        assert flipped._pointers() == flipped.pointers, flip
    flipped.back()
    after = flipped.act()
    assert after.aborted is None and after.outcome.done.orphans == 2, after
