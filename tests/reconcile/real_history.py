"""A dataset with a real Iceberg table, and others who work on it while the reconciler does: writers, compaction,
deletes, expiry, branches, people. Faults come out of the same dice: no answer from a folder, a manifest or the catalog,
files that vanish, and the end of the process at any named point."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DataFile

from strandline.core.errors import StorageError
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.reconcile.context import QUARANTINE_FOLDER
from tests.reconcile.whole_lakes import COLUMNS, WholeLake

HOUR = 3_600


class Killed(BaseException):
    """The process is gone: nothing after this happens."""


class History:
    def __init__(self, lake: WholeLake, seed: int) -> None:
        self.lake = lake
        self.random = random.Random(seed)
        self.name = f"h{seed}"
        lake.dataset = lake.lake.create_dataset(self.name, parse_columns(COLUMNS))
        self.folder = lake.warehouse / "default" / self.name
        self.lost: set[str] = set()
        """Live files that an accident took away."""
        self.rewriting: tuple[list[DataFile], DataFile] | None = None
        """What a compaction read, and what it has written and not committed."""
        self.busy = False
        self.hours_later = 0
        """What a run takes for now is so much later than it is."""
        self.unrest = self.random.choice((0, 1, 1, 4))
        self.unanswered = 0
        self.happened: list[str] = []
        self.within = False
        self.dead = False
        self._points_left: int | None = None
        for _ in range(3):
            lake.append()

    # What others do. Called before everything that a run does.

    def tick(self) -> None:
        if self.dead:
            raise Killed
        if self.busy and not self.within and self.random.random() < 0.1:
            self.event()

    def event(self) -> None:
        choices: list[Callable[[], object]] = [
            self.lake.append, self.stray, self.stray, self.stray, self.register, self.delete, self.expire, self.branch,
            self.lose, self.rewrite, self.compact, self.compact,
        ]  # fmt: skip
        what = self.random.choice(choices)
        self._do(what, what.__name__)

    def _do(self, what: Callable[[], object], name: str) -> None:
        with self.alone():
            what()
        self.happened.append(name)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What happens here does not itself wait for others, and everything answers."""
        before, self.within = self.within, True
        try:
            yield
        finally:
            self.within = before

    def stray(self) -> None:
        """A file as a writer leaves it, of any age."""
        source = self.random.choice(self.lake.data_files() or [str(self.folder / "none")])
        path = self.folder / "data" / f"stray {self.random.randrange(1 << 40)}%.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Path(source).read_bytes() if Path(source).exists() else b"x")
        at = time.time() - self.random.choice((0, 1, 200 * HOUR, 400 * HOUR))
        os.utime(path, (at, at))

    def _strays(self) -> list[Path]:
        live = self.live()
        return [p for p in sorted(self.folder.glob("data/stray*")) if str(p) not in live and p.stat().st_size > 1]

    def register(self) -> None:
        if strays := self._strays():
            self._add(self.random.choice(strays))

    def register_this(self, path: str) -> None:
        """The very file that is about to be moved. The run may not live to look whether it should have been."""
        if self.busy and not self.within and self.random.random() < 0.7 and Path(path) in self._strays():
            self._do(partial(self._add, Path(path)), "register_this")
            if self.random.random() < 0.5:
                self._points_left = self.random.randrange(1, 4)

    def _add(self, path: Path) -> None:
        self.lake.table().add_files([f"file://{path}"], check_duplicate_files=False)

    def rewrite(self) -> None:
        """Another file under the name of one that nothing references."""
        if strays := self._strays():
            path = self.random.choice(strays)
            path.write_bytes(self.random.choice(strays).read_bytes())

    def delete(self) -> None:
        files = self.lake.data_files()
        if len(files) > 1 and all(Path(path).exists() for path in files):
            self.lake.table().delete(f"_ingest_seq <= {self.random.randrange(1, 4)}")

    def compact(self) -> None:
        """In two steps: a run may come between them. Days later it may not: nobody writes that long."""
        if self.rewriting is None:
            self._read_and_write()
            if not self.hours_later:
                return
        self.commit_compaction()

    def _read_and_write(self) -> None:
        table = self.lake.table()
        tasks = sorted(table.scan().plan_files(), key=lambda task: task.file.file_path)
        there = [task for task in tasks if Path(task.file.file_path.removeprefix("file://")).exists()]
        if len(there) > 1:
            read = self.random.sample(there, 2)
            rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(read)
            (written,) = _dataframe_to_data_files(table.metadata, rows, table.io)
            self.rewriting = [task.file for task in read], written

    def commit_compaction(self) -> None:
        """Of what was written and cannot be committed any more, an orphan is left."""
        if self.rewriting is None:
            return
        (read, written), self.rewriting = self.rewriting, None
        table = self.lake.table()
        if {file.file_path for file in read} <= {task.file.file_path for task in table.scan().plan_files()}:
            with table.transaction() as transaction, transaction.update_snapshot().overwrite() as commit:
                for file in read:
                    commit.delete_data_file(file)
                commit.append_data_file(written)

    def expire(self) -> None:
        """Half of the time its files go, half of the time the process dies before and they stay."""
        table = self.lake.table()
        heads = {ref.snapshot_id for ref in table.refs().values()}
        old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id not in heads]
        if old:
            before = self.live()
            table.maintenance.expire_snapshots().by_ids(self.random.sample(old, 1)).commit()
            if self.random.random() < 0.5:
                for path in before - self.live():
                    Path(path).unlink(missing_ok=True)

    def branch(self) -> None:
        table = self.lake.table()
        main = table.current_snapshot()
        if main is not None:
            with table.manage_snapshots() as manage:
                manage.create_branch(main.snapshot_id, f"side{self.random.randrange(1 << 30)}")

    def lose(self) -> None:
        files = [path for path in self.lake.data_files() if Path(path).exists()]
        if self.random.random() < 0.4 and len(files) > 1:
            path = self.random.choice(files)
            os.unlink(path)
            self.lost.add(path)

    def find_lost(self) -> None:
        """Somebody puts back what was lost, and says that no other file was it: until then no orphan goes."""
        for path in self.lost:
            Path(path).touch()
        for suspect in self.lake.lake.reconciler.suspects():
            self.lake.lake.reconciler.release(suspect.path)

    # Faults.

    def fails(self, chance: float) -> bool:
        failed = self.busy and not self.within and self.random.random() < chance * self.unrest
        self.unanswered += failed
        return failed

    def answer(self, what: str, chance: float) -> None:
        if self.fails(chance):
            raise StorageError(f"{what}: no answer")

    def may_be_killed(self) -> None:
        if self.random.random() < 0.5:
            self._points_left = self.random.randrange(1, 16)

    def pass_point(self, name: str) -> None:
        if self.within or not name.startswith("reconcile."):
            return
        self.tick()
        if self._points_left is not None:
            self._points_left -= 1
            if self._points_left == 0:
                self.dead = True
                raise Killed

    def outlive(self) -> None:
        """Another process comes, and the lease of the one that is gone has run out."""
        self.dead, self._points_left = False, None
        with self.lake.lake.ledger.write() as connection:
            connection.exec_driver_sql("UPDATE sweep_lease SET token = NULL, until = NULL")

    # What must hold.

    def live(self) -> set[str]:
        """Everything that Iceberg's own reader reaches."""
        found: set[str] = set()
        with self.alone():
            table = self.lake.table()
        found |= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                found.add(manifest.manifest_path)
                found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io)}
        return {path.removeprefix("file://") for path in found}

    def out_of_place(self) -> set[str]:
        return {path for path in self.live() - self.lost if not Path(path).exists()}

    def set_aside(self) -> set[str]:
        kept = (self.lake.warehouse / QUARANTINE_FOLDER).glob("*/**/*")
        inside = (path.relative_to(self.lake.warehouse / QUARANTINE_FOLDER) for path in kept if path.is_file())
        return {str(self.lake.warehouse.joinpath(*path.parts[1:])) for path in inside}

    def aged_orphans(self) -> set[str]:
        """Old enough for any run that begins now. What a compaction has written is as new as its commit would be."""
        live, bound = self.live(), time.time() + (self.hours_later - 100) * HOUR
        there = (p for p in self.folder.rglob("*") if p.is_file() and p.suffix in (".parquet", ".avro", ".json"))
        return {str(p) for p in there if str(p) not in live and p.stat().st_mtime < bound}

    def check_drop(self, paths: Any) -> None:
        """Before entries are dropped: their files are gone, and nobody has them."""
        assert set(paths) <= self.lost, f"live files are given up: {sorted(set(paths) - self.lost)}"
        assert not set(paths) & self.set_aside(), f"live files in quarantine are given up: {paths}"
