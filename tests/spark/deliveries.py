"""Sinks of every kind in a test, what a consumer finds where they deliver to, and what must hold after a death.

A consumer's view uses nothing of ours: it lists names and reads objects, or asks PostgreSQL. Another lake is looked at
where its own rows are: in its table.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strandline
from strandline.core import failpoints
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.deliver import sinks
from tests.servers import S3
from tests.sinks.misbehaving import Misbehaving
from tests.spark.forwarding import Receiving, token_file
from tests.spark.lakes import in_main
from tests.spark.sinks import armed

if TYPE_CHECKING:
    from strandline.lake import Lake
    from tests.conftest import MakeHome

Settings = Mapping[str, Mapping[str, Any]]

LEASE_SECONDS = 60
"""So long that nobody who lives is superseded on a machine that is slow."""
_OBJECT = re.compile(r"(\d{19})-(\d{19})\.(parquet|jsonl\.zst)")
_MARK = re.compile(r"(\d{19})\.json")


@dataclass(frozen=True, slots=True)
class Found:
    """An object: what its name says."""

    lo: int
    hi: int
    path: Path

    def read(self) -> Any:
        """A table of its rows, number and `n`; fails for half an object."""
        import pyarrow as pa
        import pyarrow.json as pj
        import pyarrow.parquet as pq

        if self.path.suffix == ".parquet":
            return pq.ParquetFile(self.path).read(columns=["_ingest_seq", "n"])
        with pa.input_stream(self.path, compression="zstd") as stream:
            return pj.read_json(stream).select(["_ingest_seq", "n"])


@dataclass(frozen=True, slots=True)
class Seen:
    rows: list[tuple[int, int]]
    """Number and `n`, in order; one that stands there twice is there twice."""
    things: Mapping[str, str]
    """What each object is, byte by byte; of a table what each row is, and which transaction wrote it where."""


@dataclass(frozen=True)
class Objects:
    kind: str
    folder: Path
    """Of a bucket: where the server keeps it."""
    options: Mapping[str, str]

    def lanes(self) -> dict[Path, list[Found]]:
        found: dict[Path, list[Found]] = {}
        for path in self._files():
            if named := _OBJECT.fullmatch(path.name):
                found.setdefault(path.parent, []).append(Found(int(named[1]), int(named[2]), path))
        return {lane: sorted(objects, key=lambda o: o.lo) for lane, objects in found.items()}

    def mark(self) -> int:
        """The highest of a sink that has one lane; 0 for none."""
        named = (_MARK.fullmatch(path.name) for path in self._files() if path.parent.name == "_marks")
        return max((int(m[1]) for m in named if m), default=0)

    def _files(self) -> Iterator[Path]:
        """What is there while others come and go."""
        for folder, _, names in os.walk(self.folder):
            yield from (Path(folder, name) for name in names)

    def see(self) -> Seen:
        rows: list[tuple[int, int]] = []
        things = {}
        for objects in self.lanes().values():
            for a, b in itertools.pairwise(objects):
                assert a.hi < b.lo, f"{a.path} and {b.path} overlap"
            for o in objects:
                table = o.read()
                rows += zip(table["_ingest_seq"].to_pylist(), table["n"].to_pylist(), strict=True)
                things[str(o.path)] = hashlib.sha256(o.path.read_bytes()).hexdigest()
        return Seen(sorted(rows), things)


@dataclass(frozen=True)
class Table:
    url: str
    options: Mapping[str, str]
    kind: str = "postgres"

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url) as connection:
            if connection.execute("SELECT to_regclass('events')").fetchone() == (None,):
                return []
            return connection.execute(statement.encode()).fetchall()

    def see(self) -> Seen:
        found = self.ask("SELECT _ingest_seq, n, ctid::text || ' of ' || xmin::text FROM events ORDER BY 1, 2")
        return Seen([(seq, n) for seq, n, _ in found], {f"{seq} at {where}": str(n) for seq, n, where in found})


@dataclass(frozen=True)
class OtherTable:
    """A table of another catalog, as PyIceberg shows it to its owner."""

    folder: Path
    options: Mapping[str, str]
    kind: str = "iceberg"

    def load(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        where = {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/warehouse"}
        return SqlCatalog("other", **where).load_table("shop.events")

    def see(self) -> Seen:
        table = self.load()
        rows: list[tuple[int, int]] = []
        things = {}
        for task in table.scan().plan_files():
            path = Path(task.file.file_path.removeprefix("file://"))
            found = pq_rows(path)
            rows += found
            things |= {f"{seq} in {path.name}": str(n) for seq, n in found}
        return Seen(sorted(rows), things)


def pq_rows(path: Path) -> list[tuple[int, int]]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(path).read(columns=["_ingest_seq", "n"])
    return list(zip(table["_ingest_seq"].to_pylist(), table["n"].to_pylist(), strict=True))


@dataclass(frozen=True)
class Received:
    """Another lake, over HTTP. It gives numbers of its own, so that a row is told by its `n`."""

    to: Receiving
    options: Mapping[str, str]
    kind: str = "forward"

    def see(self) -> Seen:
        self.to.ingest()
        found = in_main(self.to.lake, "events")
        return Seen(sorted((n, n) for _, n in found), {f"row {seq}": str(n) for seq, n in found})


@dataclass(frozen=True)
class Posted:
    """A server that stores each body once by its key, and cannot be asked for it."""

    server: Misbehaving
    options: Mapping[str, str]
    kind: str = "forward"

    def see(self) -> Seen:
        rows = [json.loads(line) for body in self.server.stored.values() for line in body.splitlines()]
        things = {key: hashlib.sha256(body).hexdigest() for key, body in self.server.stored.items()}
        return Seen(sorted((r["_ingest_seq"], r["n"]) for r in rows), things)


Destination = Objects | Table | OtherTable | Received | Posted


def make_lake(folder: Path, make_home: MakeHome, settings: Settings | None = None, *, by_lane: bool = False) -> Lake:
    given = dict(settings or {})
    given["deliver"] = {"lease_seconds": LEASE_SECONDS, **given.get("deliver", {})}
    make_home(folder, given)
    lake = strandline.init_lake(folder)
    columns = parse_columns([{"name": "n", "type": "long"}, {"name": "k", "type": "string"}])
    lake.create_dataset("events", columns, deliver_by=["k"] if by_lane else [])
    return lake


def in_folder(folder: Path, **options: str) -> Objects:
    return Objects("files", folder, {"path": str(folder), **options})


def in_bucket(s3: S3, **options: str) -> Objects:
    """The keys are expected in the environment: see `keys_of`."""
    bucket = s3.make_bucket()
    where = {"url": f"s3://{bucket}/to", "endpoint": s3.endpoint}
    keys = {"access_key": "env:TEST_ACCESS_KEY", "secret_key": "env:TEST_SECRET_KEY"}
    return Objects("s3", s3.server.folder / "data" / bucket, {**where, **keys, **options})


def keys_of(s3: S3) -> dict[str, str]:
    return {"TEST_ACCESS_KEY": s3.access_key, "TEST_SECRET_KEY": s3.secret_key}


def in_table(url: str, **options: str) -> Table:
    return Table(url, {"dsn": url, "table": "events", "create": "true", **options})


def in_catalog(folder: Path, **options: str) -> OtherTable:
    """A SQLite catalog that a Spark of its owner may open as `other`."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir()
    SqlCatalog("other", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse").close()
    where = {"catalog": str(folder / "catalog.db"), "catalog_name": "other", "warehouse": str(folder / "warehouse")}
    return OtherTable(folder, {**where, "table": "shop.events", "create": "true", **options})


def in_lake(to: Receiving, **options: str) -> Received:
    """Which must have the dataset `events`, and is to be allowed: see `forwarding.SETTINGS`."""
    url = f"http://127.0.0.1:{to.port}/v1/datasets/events/rows"
    token = token_file(to, to.lake.config.home, "token")
    return Received(to, {"url": url, "token": f"file:{token}", **options})


def at_server(server: Misbehaving, **options: str) -> Posted:
    return Posted(server, {"url": server.url(), "success_status": "202", "compression": "none", **options})


@dataclass
class Delivered:
    """A lake with a dataset `events` whose `n` are 1, 2, 3…, and its sinks, named after their kinds."""

    lake: Lake
    sinks: dict[str, Destination] = field(default_factory=dict)
    rows: int = 0

    def add(self, destination: Destination, **options: str) -> None:
        name = f"{destination.kind}_{len(self.sinks)}" if destination.kind in self.sinks else destination.kind
        self.lake.delivery.add(name, "events", destination.kind, {**destination.options, **options})
        self.sinks[name] = destination

    def ingest(self, count: int = 10) -> None:
        df = self.lake.spark.range(self.rows + 1, self.rows + count + 1, 1, 2)
        done = self.lake.append("events", df.selectExpr("id AS n", "concat('lane ', id % 2) AS k"))
        assert done.rows is not None and (done.rows.lo, done.rows.hi) == (self.rows + 1, self.rows + count)
        self.rows += count

    def survives(self, sink: str, death: Callable[[], None]) -> None:
        """A deliverer dies on its way, more rows come, and another goes on: each row is there once, and whatever was
        there before is as it was."""
        self.ingest()
        death()
        left = self.sinks[sink].see()
        self.ingest()
        outlive_lease(self.lake)
        with strandline.open(self.lake.config.home) as successor:
            [report] = successor.tick(sink).sinks
        assert report.did == "delivered", report
        after = self.sinks[sink].see()
        assert after.rows == self.expected
        assert left.things.items() <= after.things.items()

    @property
    def is_done(self) -> bool:
        """Whether every sink has every row."""
        with self.lake.ledger.read() as connection:
            return not any(w.unplanned_rows or w.open_intents or w.behind for w in sinks.due(connection))

    @property
    def expected(self) -> list[tuple[int, int]]:
        return [(n, n) for n in range(1, self.rows + 1)]


def outlive_lease(lake: Lake) -> None:
    """As if the lease of every sink had run out."""
    with lake.ledger.write() as connection:
        connection.exec_driver_sql(
            "UPDATE sink SET lease_until = lease_until - 3600000000 WHERE lease_until IS NOT NULL"
        )


def dies_at(to: Delivered, sink: str, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick that ends as if its process had: its lease stays taken, and nothing more gets into the ledger."""
    name, _, nth = point.partition("@")
    with monkeypatch.context() as dead, armed(dead, f"{name}=fail@{nth or 1}"):
        for room, last_word in (
            (sinks.leases, "release"),
            (sinks, "failed"),
            (sinks, "stop"),
            (sinks, "clear_failures"),
        ):
            dead.setattr(room, last_word, lambda *_, **__: False)
        try:
            [report] = to.lake.tick(sink).sinks
        except failpoints.FailpointError as e:
            assert str(e) == name
        else:  # it was in a worker, where Spark tells of it
            assert name in (report.reason or ""), f"{point} was not reached: {report}"
