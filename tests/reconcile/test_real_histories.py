"""Random histories on real Iceberg tables, through PyIceberg and on a real disk: writers, deletes, expiry, branches and
people work on the table while runs list, look, move and commit."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.drift import Asked
from strandline.reconcile.local_store import LocalStore
from strandline.reconcile.model import Finding
from strandline.reconcile.references import ReferenceReader
from strandline.tables.schema_file import parse_columns
from tests.reconcile.whole_lakes import ACT, COLUMNS, WholeLake

pytestmark = pytest.mark.timeout(900)

HISTORIES = 56
SHARDS = 4
HOUR = 3_600


class History:
    def __init__(self, lake: WholeLake, seed: int) -> None:
        self.lake = lake
        self.random = random.Random(seed)
        self.name = f"h{seed}"
        lake.dataset = lake.lake.create_dataset(self.name, parse_columns(COLUMNS))
        self.folder = lake.warehouse / "default" / self.name
        self.lost: set[str] = set()
        self.busy = False
        self.within = False
        for _ in range(3):
            lake.append()

    # What others do.

    def tick(self) -> None:
        if self.busy and not self.within and self.random.random() < 0.15:
            self.within = True  # what happens here does not itself wait for others
            try:
                self.event()
            finally:
                self.within = False

    def event(self) -> None:
        choices: list[Callable[[], object]] = [
            self.lake.append, self.stray, self.stray, self.register, self.delete, self.expire, self.branch, self.lose,
        ]  # fmt: skip
        self.random.choice(choices)()

    def stray(self) -> str:
        """A file as a writer leaves it, of any age."""
        source = self.random.choice(self.lake.data_files() or [str(self.folder / "none")])
        path = self.folder / "data" / f"stray {self.random.randrange(1 << 40)}%.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Path(source).read_bytes() if Path(source).exists() else b"x")
        at = time.time() - self.random.choice((0, 1, 200 * HOUR, 400 * HOUR))
        os.utime(path, (at, at))
        return str(path)

    def register(self) -> None:
        strays = [
            p for p in sorted(self.folder.glob("data/stray*")) if str(p) not in self.live() and p.stat().st_size > 1
        ]
        if strays:
            self.lake.table().add_files([f"file://{self.random.choice(strays)}"], check_duplicate_files=False)

    def delete(self) -> None:
        files = self.lake.data_files()
        if len(files) > 1 and all(Path(path).exists() for path in files):
            self.lake.table().delete(f"_ingest_seq <= {self.random.randrange(1, 4)}")

    def expire(self) -> None:
        table = self.lake.table()
        old = [
            s.snapshot_id
            for s in table.snapshots()
            if s.snapshot_id not in {r.snapshot_id for r in table.refs().values()}
        ]
        if old:
            table.maintenance.expire_snapshots().by_ids(self.random.sample(old, 1)).commit()

    def branch(self) -> None:
        table = self.lake.table()
        main = table.current_snapshot()
        if main is not None:
            with table.manage_snapshots() as manage:
                manage.create_branch(main.snapshot_id, f"side{self.random.randrange(1 << 30)}")

    def lose(self) -> None:
        if self.random.random() < 0.3 and (files := [p for p in self.lake.data_files() if Path(p).exists()]):
            path = self.random.choice(files)
            os.unlink(path)
            self.lost.add(path)

    # What must hold.

    def live(self) -> set[str]:
        """Everything that Iceberg's own reader reaches."""
        found: set[str] = set()
        table = self.lake.table()
        found |= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                found.add(manifest.manifest_path)
                found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io)}
        return {path.removeprefix("file://") for path in found}

    def assert_live_files_are_there(self) -> None:
        gone = {path for path in self.live() - self.lost if not Path(path).exists()}
        assert not gone, sorted(gone)

    def aged_orphans(self) -> set[str]:
        live, bound = self.live(), time.time() - 100 * HOUR
        there = (p for p in self.folder.rglob("*") if p.is_file() and p.suffix in (".parquet", ".avro", ".json"))
        return {str(p) for p in there if str(p) not in live and p.stat().st_mtime < bound}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeLake]:
    made = WholeLake(
        tmp_path_factory.mktemp("real") / "lake",
        grace_hours=24, batch_size=2, recheck_concurrency=1, lease_seconds=60, deletes_max_share=1.0,
    )  # fmt: skip
    yield made
    made.lake.close()


@pytest.fixture
def ticking(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> list[History]:
    """Before whatever a run does, others have their turn."""
    current: list[History] = []

    def first(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def ticked(self: Any, *arguments: Any, **options: Any) -> Any:
            for history in current:
                history.tick()
            return real(self, *arguments, **options)

        monkeypatch.setattr(owner, name, ticked)

    for name in ("look", "set_aside", "_set_aside"):
        first(LocalStore, name)
    first(ReferenceReader, "read")
    first(ReferenceReader, "_read_tables")
    return current


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_live_file_of_a_real_table_is_touched_and_every_aged_orphan_is_found(
    lake: WholeLake, ticking: list[History], shard: int
) -> None:
    acted = 0
    for seed in range(shard, HISTORIES, SHARDS):
        history = History(lake, seed)
        ticking[:] = [history]
        for _ in range(history.random.randrange(3, 7)):
            history.event()
        history.busy = True
        for _ in range(2):
            acted += lake.run(Asked(act=True, delete=history.random.random() < 0.3)).outcome.done.orphans
        history.busy = False
        old, told = history.aged_orphans(), list[Finding]()
        run = lake.run(ACT, on_finding=told.append)
        assert run.aborted is None, f"history {seed}: {run.why}"
        assert old <= {f.path for f in told if f.protected is None}, f"history {seed}"
        history.assert_live_files_are_there()
        assert not history.aged_orphans(), f"history {seed}"
        ticking.clear()
        lake.lake.catalog.drop(lake.dataset.name)
        _forget(lake)
        shutil.rmtree(history.folder)
    assert acted > HISTORIES / SHARDS / 4, "hardly anything happened"


def _forget(lake: WholeLake) -> None:
    from strandline.ledger import datasets

    with lake.lake.ledger.write() as connection:
        datasets.mark_dropped(connection, lake.dataset.id)
