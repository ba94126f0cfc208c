"""A whole lake without a JVM: ledger, witness, catalog, and tables whose blocks are published."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

import strandline
from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import Asked, ReconcileRun, Swept, SweptState
from strandline.core.settings.lake_config import CONFIG_NAME
from strandline.core.types import SEQ_COLUMN, Reserved, SeqRange, SnapshotId, Staged
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger import audit
from strandline.ledger.ingest import blocks
from strandline.ledger.reconcile import quarantined_files
from strandline.reconcile import sweep
from tests.conftest import toml_of
from tests.reconcile.no_grace import NO_GRACE_HOURS
from tests.reconcile.run_reports import RunReports

COLUMNS = [{"name": "id", "type": "long"}, {"name": "kind", "type": "string"}]
REPORT, ACT = Asked(), Asked(act=True)
SETTINGS = {"grace_hours": NO_GRACE_HOURS, "clock_skew_seconds": 0, "lease_seconds": 2}
"""A commit of a moment ago is old enough; files that tests put there are days old."""


Sections = Mapping[str, Mapping[str, object]]


def write_settings(home: Path, sections: Sections) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / CONFIG_NAME).write_text(toml_of(sections), "utf-8")


class WholeLake:
    def __init__(self, home: Path, sections: Sections | None = None, **reconcile: Any) -> None:
        self._sections = dict(sections or {})
        write_settings(home, self._sections | {"reconcile": SETTINGS | reconcile})
        self.home = home
        self.lake = strandline.init_lake(home)
        _again(lambda: self.lake.create_dataset("events", parse_columns(COLUMNS)))
        self.dataset = self.lake.dataset("events")
        self.warehouse = self.lake.config.warehouse_folder or home

    def settings(self, **reconcile: Any) -> None:
        """Other settings, as a process that starts later reads them."""
        write_settings(self.home, self._sections | {"reconcile": SETTINGS | reconcile})
        self.lake.close()
        self.lake = strandline.open(self.home)

    # Rows.

    def append(self, rows: int = 3, *, publish: bool = True) -> SeqRange:
        wanted = blocks.NewBlock(self.dataset.id, rows, f"batch-{time.time_ns()}", None)
        block, _ = blocks.reserve(self.lake.ledger, self.lake.witness, wanted, lease_seconds=600)
        assert isinstance(block, Reserved)
        numbers = block.head.rows
        schema = pa.schema(
            [pa.field(SEQ_COLUMN, pa.int64(), nullable=False), ("id", pa.int64()), ("kind", pa.string())]
        )
        data = pa.table(
            {SEQ_COLUMN: list(range(numbers.lo, numbers.hi + 1)), "id": [1] * rows, "kind": ["k"] * rows}, schema=schema
        )
        _again(lambda: self.table().append(data))
        if publish:
            assert blocks.mark_staged(self.lake.ledger, self.lake.witness, block, SnapshotId(7))
            staged = blocks.find_block(self.lake.ledger, block.head)
            assert isinstance(staged, Staged)
            assert blocks.mark_published(self.lake.ledger, staged, row_count=rows, snapshot=None)
        return numbers

    def table(self) -> Table:
        return self.lake.catalog.load(self.dataset.name)

    def data_files(self) -> list[str]:
        """Of main, oldest rows first."""
        files = [task.file for task in self.table().scan().plan_files()]
        field = self.table().schema().find_field(SEQ_COLUMN).field_id
        files.sort(key=lambda file: int.from_bytes(file.lower_bounds[field], "little"))
        return [file.file_path.removeprefix("file://") for file in files]

    def count(self) -> int:
        return self.table().scan().to_arrow().num_rows

    # Files.

    def put(self, name: str, *, days_old: float = 10, content: bytes = b"orphan") -> str:
        path = self.warehouse / "default" / "events" / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        at = time.time() - days_old * 86_400
        os.utime(path, (at, at))
        return str(path)

    def puts(self, count: int) -> list[str]:
        return [self.put(f"stray-{n:04}.parquet", content=b"x" * (n + 1)) for n in range(count)]

    # Runs.

    def run(
        self, asked: Asked = ACT, *, inventory_file: Path | None = None, cancelled: Event | None = None, **reports: Any
    ) -> ReconcileRun:
        """`reports`: see `RunReports`."""
        listener = RunReports(**reports)
        return self.lake.reconciler.run(asked, inventory_file=inventory_file, cancelled=cancelled, listener=listener)

    def swept(self, run: int) -> list[Swept]:
        with self.lake.ledger.read() as connection:
            return quarantined_files.of_run(connection, run)  # type: ignore[arg-type]

    def states(self, run: int) -> dict[str, SweptState]:
        return {file.path: file.state for file in self.swept(run)}

    def events(self) -> list[str]:
        with self.lake.ledger.read() as connection:
            return [event.event for event in reversed(audit.latest(connection, events_max=1000))]

    def details(self, event: str) -> list[dict[str, Any]]:
        with self.lake.ledger.read() as connection:
            return [e.detail for e in reversed(audit.latest(connection, events_max=1000)) if e.event == event]


def _again(work: Callable[[], object]) -> None:
    """Once in many requests the S3 server of the tests says that it cannot parse one. Nothing was committed then."""
    for left in (4, 3, 2, 1, 0):
        try:
            work()
        except (OSError, StorageError) as e:
            if left == 0 or "parsing the HTTP request" not in str(e):
                raise
        else:
            return


def there(paths: Sequence[str]) -> list[bool]:
    return [Path(path).exists() for path in paths]


MakeLake = Callable[..., WholeLake]


def after_survey(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Something happens between listing and acting."""
    tell = sweep._Sweep._report

    def told(self: Any, *arguments: Any) -> None:
        tell(self, *arguments)
        then()

    monkeypatch.setattr(sweep._Sweep, "_report", told)
