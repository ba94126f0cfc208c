"""A real receiver: uvicorn on a free port, a real ledger, a folder as warehouse. Only Spark is left out: what reads the
columns of a table is a function here, and what counts rows in it another."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import sqlalchemy as sa
import uvicorn

from strandline.core import failpoints, forward_protocol
from strandline.core.errors import NoSuchDataset
from strandline.core.forward_protocol import LaneName, RangeIdentity
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset, Seq, SeqRange
from strandline.iceberg.schema.columns import Column
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest.sources.body import read_json_lines
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import senders, tokens
from strandline.ledger.receive.receipts import open_receipts
from strandline.ledger.receive.senders import SourceRecord
from strandline.ledger.schema.receive import received
from strandline.ledger.witness import WitnessRecord, open_witness
from strandline.receive.context import ReceiverContext
from strandline.receive.http.app import create_app
from strandline.receive.spool import open_spool
from tests.conftest import MakeHome
from tests.waiting import eventually

COLUMNS = parse_columns([{"name": "id", "type": "long", "required": True}, {"name": "text", "type": "string"}])
LANE = LaneName("lake-a", "sink-1", 1, "default.events", "")


@dataclass
class ReceivingLake:
    """A lake with one dataset and one token, and as many receivers over it as a test wants."""

    config: LakeConfig
    ledger: Ledger
    dataset: Dataset
    token: str
    columns: dict[str, Sequence[Column]]
    inspected: list[tuple[str, LaneName, Seq, Seq]] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)

    def parts(self, **other: Any) -> ReceiverContext:
        known: dict[str, Any] = {
            "config": self.config,
            "ledger": self.ledger,
            "spool": open_spool(self.config),
            "receipts": open_receipts(self.config),
            "witness": open_witness(self.config),
            "tables": self,
            "read_lines": read_json_lines,
        }
        return ReceiverContext(**(known | other))

    def schema_of(self, name: str) -> tuple[Dataset, Sequence[Column]]:
        with self.ledger.read() as connection:
            found = datasets.find(connection, name)
        if found is None:
            raise NoSuchDataset(f"there is no dataset {name}")
        return found, self.columns[name]

    def inspect(self, dataset: Dataset, lane: LaneName, lo: Seq, hi: Seq) -> dict[str, Any]:
        self.inspected.append((dataset.name, lane, lo, hi))
        return {"ranges": [{"lo": lo, "hi": hi, "rows": 1, "digest": "d", "problem": None}]}

    def serve(self, **other: Any) -> Client:
        client = Client(self.stack.enter_context(running(self.parts(**other))), self.token)
        self.stack.callback(client.http.close)
        return client

    def recorded(self) -> list[Any]:
        with self.ledger.read() as connection:
            return list(connection.execute(sa.select(received).order_by(received.c.id)))

    def files(self) -> list[Path]:
        folder = self.config.warehouse_folder
        assert folder is not None
        return sorted(p for p in (folder / "_strandline" / "spool").rglob("*") if p.is_file())

    def rows(self) -> list[dict[str, Any]]:
        """What the recorded files hold, in the order of the ledger."""
        spool = open_spool(self.config)
        found: list[dict[str, Any]] = []
        for body in self.recorded():
            if body.spool is not None:
                with spool.read(body.spool) as parts:
                    for part in parts:
                        found += part.to_pylist()
        return found

    def add_token(self, name: str, only: Sequence[str] | None = None, replaces: str | None = None) -> str:
        with self.ledger.write() as connection:
            return tokens.create(connection, name, only, replaces=replaces)[1]


@dataclass
class Client:
    base: str
    token: str

    def __post_init__(self) -> None:
        self.http = httpx.Client(timeout=60)

    @property
    def url(self) -> str:
        return f"{self.base}/v1/datasets/events/rows"

    def headers(self, key: str | None = None, rows: SeqRange | None = None, **other: str) -> dict[str, str]:
        found = {"Authorization": f"Bearer {self.token}", "Content-Type": forward_protocol.JSON_LINES}
        if key is not None:
            found[forward_protocol.KEY] = key
        if rows is not None:
            found |= forward_protocol.identity_headers(RangeIdentity(LANE, rows))
        return found | {name.replace("_", "-"): value for name, value in other.items()}

    def send(
        self, body: Any, key: str | None = None, *, rows: SeqRange | None = None, url: str | None = None, **other: str
    ) -> httpx.Response:
        if isinstance(body, list):
            body = lines(body if rows is None else numbered(body, rows))
        return self.http.post(url or self.url, content=body, headers=self.headers(key, rows, **other))

    def ask(self, what: str, **question: Any) -> httpx.Response:
        return self.http.post(f"{self.url}/{what}", json=question, headers={"Authorization": f"Bearer {self.token}"})

    def raw(self) -> socket.socket:
        host, _, port = self.base.removeprefix("http://").partition(":")
        return socket.create_connection((host, int(port)), timeout=60)


def lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def numbered(rows: Sequence[Mapping[str, Any]], within: SeqRange) -> list[dict[str, Any]]:
    """As a sender of Strandline's has them: with their numbers, from the first of the range on."""
    return [{"_ingest_seq": n} | dict(row) for n, row in enumerate(rows, within.lo)]


def some(count: int, start: int = 1) -> list[dict[str, Any]]:
    return [{"id": n, "text": f"row {n}"} for n in range(start, start + count)]


def span(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def arrow(table: pa.Table, **options: Any) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


@contextmanager
def running(parts: ReceiverContext) -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        patient = {"timeout_graceful_shutdown": 50, "timeout_keep_alive": 75}
        server = uvicorn.Server(uvicorn.Config(create_app(parts), log_config=None, **patient))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        eventually(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


def new_lake(config: LakeConfig) -> ReceivingLake:
    ledger = Ledger(config)
    ledger.create("lake-under-test")
    ledger.open()
    folder = config.warehouse_folder
    assert folder is not None
    folder.mkdir(parents=True, exist_ok=True)
    open_witness(config).create(WitnessRecord("lake-under-test", 0))
    with ledger.write() as connection:
        dataset = datasets.add(connection, name="default.events", table_uuid="uuid-of-events")
        token, secret = tokens.create(connection, "first", None)
        own = {"instance": LANE.instance, "table_uuid": "u", "generation": 1, "owner": token.owner}
        senders.claim(connection, dataset.id, SourceRecord(LANE.lake, LANE.dataset, **own))
    return ReceivingLake(config, ledger, dataset, secret, {dataset.name: COLUMNS})


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    """What a test wants otherwise: overridden by parametrising it."""
    return {}


@pytest.fixture
def lake(
    request: pytest.FixtureRequest, tmp_path: Path, make_home: MakeHome, settings: dict[str, dict[str, Any]]
) -> Iterator[ReceivingLake]:
    made = new_lake(make_home(tmp_path, settings))
    with made.stack:
        yield made
    made.ledger.close()


@pytest.fixture
def client(lake: ReceivingLake) -> Client:
    return lake.serve()


@pytest.fixture
def armed() -> Iterator[Callable[[str], None]]:
    yield failpoints.arm
    failpoints.arm("")
