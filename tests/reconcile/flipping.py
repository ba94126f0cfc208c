"""A lake of which one bit of one metadata file is flipped before each run: no live file moves, no entry is dropped, and
no run ends because of it."""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StringType

from strandline.core.records.reconcile_records import ReconcileRun
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.reconcile import survey
from strandline.reconcile.storage.pool import Pool
from tests.reconcile.conftest import data_files, live_files
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
            self.flip_one(path, dice.randrange(8 * Path(path).stat().st_size), strays)
        self.put_back()
        after = self.run(ACT)
        assert after.aborted is None and after.outcome.done.orphans == 2, after
        self.put_back()

    def flip_one(self, path: str, bit: int, strays: int = 0) -> ReconcileRun:
        content = flip(path, bit)
        run = self.run(ACT)
        assert run.aborted is None, (path, bit, run.why)
        assert not self.misplaced(), (path, bit, run)
        assert run.outcome.done.missing == 0, (path, bit, run)
        assert run.outcome.done.orphans >= strays - 1, (path, bit, run)  # it costs one table, at most
        Path(path).write_bytes(content)
        assert self.pointers() == self.before, (path, bit)
        return run

    def renaming_flip(self) -> tuple[str, int]:
        """A manifest of the dataset's, and a bit that changes one path in it and nothing else. Names are different each
        time, so it is searched for."""
        snapshot = self.table().current_snapshot()
        assert snapshot is not None
        for manifest in snapshot.manifests(self.table().io):
            path = manifest.manifest_path.removeprefix("file://")
            (entry,) = manifest.fetch_manifest_entry(self.table().io)
            bit = _bit_that_renames(Path(path).read_bytes(), Path(entry.data_file.file_path).name.encode())
            if bit is not None:
                return path, bit
        raise AssertionError("no bit of any manifest changes a path and nothing else")

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


_SYNC_BYTES = 16


def _bit_that_renames(manifest: bytes, name: bytes) -> int | None:
    """In an Avro file with one block, as PyIceberg writes it for one entry. The name stays one of a Parquet file."""
    start = manifest.index(manifest[-_SYNC_BYTES:]) + _SYNC_BYTES
    for _ in range(2):  # the number of records and of bytes, before the block
        while manifest[start] & 0x80:
            start += 1
        start += 1
    block = manifest[start:-_SYNC_BYTES]
    plain = zlib.decompress(block, wbits=-15)
    at = plain.index(name)
    end = at + len(name) - len(".parquet")
    for bit in range(8 * len(block)):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = zlib.decompress(flipped, wbits=-15)
        except zlib.error:
            continue
        is_named = found[at:end].replace(b"-", b"").isalnum() and found[at:end] != plain[at:end]
        if is_named and found[:at] == plain[:at] and found[end:] == plain[end:]:
            return 8 * start + bit
    return None


SEVERAL_FILES = {"write.target-file-size-bytes": "2000", "write.avro.compression-codec": "null"}
"""Properties of a table in which one write makes several files, whose names are one bit apart."""
SEVERAL_ROWS = 400


def repeat_an_entry(table: Table) -> str:
    """One flipped bit in the manifest of a table with `SEVERAL_FILES`: the entry of one file becomes another one for
    the file beside it. The file that lost its entry."""
    paths = data_files(table)
    lost = next(path for path in paths if path.replace("/00000-1-", "/00000-0-") != path)
    assert lost.replace("/00000-1-", "/00000-0-") in paths
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(table.io):
        path = manifest.manifest_path.removeprefix("file://")
        at = Path(path).read_bytes().find(lost.encode())
        if at >= 0:
            flip(path, 8 * (at + lost.index("/00000-1-") + len("/00000-")))
            return lost
    raise AssertionError("no manifest names the file as it is spelled")


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
