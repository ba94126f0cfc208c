"""A lake that several write to, with a sink of every kind, and what is known of each of its rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers import S3, Postgres
from tests.spark.deliveries import (
    LEASE_SECONDS,
    Delivered,
    Received,
    in_bucket,
    in_folder,
    in_lake,
    in_table,
    keys_of,
    make_lake,
)
from tests.spark.forwarding import ROWS, SETTINGS, open_end
from tests.spark.lakes import create, sql

if TYPE_CHECKING:
    from strandline.lake import Lake
    from tests.conftest import MakeHome

KINDS = ("files", "s3", "postgres", "forward")
CARE: dict[str, dict[str, Any]] = {
    "ingest": {"lease_seconds": LEASE_SECONDS},
    "maintain": {"compact": {"files_min": 2, "manifests_max": 2}},
}
"""Maintenance that finds something to do in small tables."""


class Shore(Delivered):
    """Its `n` are 1, 2, 3… too, in whatever order the writers come."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake)
        self.known: list[tuple[int, int]] = []
        """Number and `n` of what was acknowledged."""
        self._lock = threading.Lock()

    def ingest(self, count: int = 10) -> None:
        self.write(self.lake, count)

    def write(self, lake: Lake, count: int) -> None:
        with self._lock:
            first = self.rows + 1
            self.rows += count
        df = lake.spark.range(first, first + count, 1, 2)
        done = lake.append("events", df.selectExpr("id AS n", "concat('lane ', id % 2) AS k"))
        assert done.rows is not None and len(done.rows) == count
        with self._lock:
            self.known += [(done.rows.lo + i, first + i) for i in range(count)]

    def deliver(self) -> None:
        for report in self.lake.tick().sinks:
            assert report.reason is None, report

    def drain(self) -> None:
        """What others left half done is gone on with when its lease has run out. Nobody waits for a turn after a
        failure."""
        deadline = time.monotonic() + 240
        while not self.is_done:
            with self.lake.ledger.write() as connection:
                connection.exec_driver_sql("UPDATE sink SET retry_at = NULL")
            report = self.lake.tick()
            assert time.monotonic() < deadline, report

    def wanted(self, sink: str) -> list[tuple[int, int]]:
        """Of every row that was acknowledged, one. Another lake gives numbers of its own."""
        of_its_own = isinstance(self.sinks[sink], Received)
        return sorted((n if of_its_own else seq, n) for seq, n in self.known)

    def is_whole(self) -> None:
        """Every sink has every row once, as a consumer sees it, and `verify` says the same."""
        for name, destination in self.sinks.items():
            assert destination.see().rows == self.wanted(name), name
        report = self.lake.delivery.verify()
        assert report.ok, [f for verdict in report.sinks for f in verdict.findings]
        assert {v.name: (v.rows, v.lanes > 0) for v in report.sinks} == dict.fromkeys(
            self.sinks, (len(self.known), True)
        )

    def left(self, where: str = "true") -> list[int]:
        """The numbers that are in the table still."""
        return sorted(r[0] for r in sql(self.lake, f"SELECT _ingest_seq FROM lake.default.events WHERE {where}"))

    # The care that a table needs. All of it is due at once.

    def compact(self) -> None:
        self.lake.maintenance.compact("events")

    def retain(self, **options: Any) -> None:
        self.lake.maintenance.retain("events", older_than=timedelta(0), accept_clock=True, **options)

    def expire(self) -> None:
        self.lake.maintenance.expire("events", older_than=timedelta(0), keep_min=1)

    def purge(self, where: str) -> None:
        self.lake.maintenance.purge("events", where)

    def maintain(self) -> None:
        self.compact()
        self.retain()
        self.expire()


@contextmanager
def open_shore(
    folder: Path, make_home: MakeHome, s3: S3, postgres: Postgres, *, by_lane: bool, kinds: tuple[str, ...] = KINDS
) -> Iterator[Shore]:
    with pytest.MonkeyPatch.context() as environ, ExitStack() as opened:
        for name, value in keys_of(s3).items():
            environ.setenv(name, value)
        shore = Shore(opened.enter_context(make_lake(folder / "lake", make_home, SETTINGS | CARE, by_lane=by_lane)))
        if "files" in kinds:
            shore.add(in_folder(folder / "out"), chunk_rows_max="8")
        if "s3" in kinds:
            shore.add(in_bucket(s3), chunk_rows_max="8")
        if "postgres" in kinds:
            shore.add(in_table(postgres.create_database()), chunk_rows_max="8")
        if "forward" in kinds:
            to = opened.enter_context(open_end(folder / "to", make_home, CARE))
            create(to.lake, "events", ROWS)
            shore.add(in_lake(to), chunk_rows_max="8")
        yield shore
