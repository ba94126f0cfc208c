"""One ledger for many tests of delivery: each has a dataset and a sink of its own in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from strandline.core.delivery_types import (
    Acknowledged,
    Chunk,
    ChunkPlan,
    ChunkState,
    Intent,
    Lane,
    LanePlan,
    SinkRecord,
)
from strandline.core.read_token import Continuation
from strandline.core.types import BlockKind, Dataset, Lease, Seq, SeqRange
from strandline.ledger.deliver import intents, lanes, sinks
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets, restored_blocks
from tests.ledger.conftest import LAKE, LakeState, new_lake

_numbers = count(1)


def open_shared(
    request: pytest.FixtureRequest, database: str, given: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[LakeState]:
    settings = dict(given or {})
    if database == "postgres":
        settings["ledger"] = {"url": request.getfixturevalue("postgres_server").create_database()}
    folder = request.getfixturevalue("tmp_path_factory").mktemp("shared")
    made = new_lake(request.getfixturevalue("make_home")(folder, settings))
    if database == "sqlite":
        made.ledger.engine.dispose()
        event.listen(made.ledger.engine, "connect", _without_waiting_for_the_disk)
    yield made
    made.ledger.close()
    if database == "postgres":
        request.getfixturevalue("postgres_server").drop_database(settings["ledger"]["url"])


def _without_waiting_for_the_disk(connection: sqlite3.Connection, _record: object) -> None:
    """What these tests promise holds with it, too; that the ledger waits is promised in `test_versions`."""
    connection.execute("PRAGMA synchronous=OFF")


def planned(lo: int, hi: int, expected: int | None = None) -> ChunkPlan:
    return ChunkPlan(SeqRange(Seq(lo), Seq(hi)), hi - lo + 1 if expected is None else expected)


def one_chunk(partition: str, after: int | None, until: int) -> LanePlan:
    return LanePlan(partition, None if after is None else Seq(after), Seq(until), (planned((after or 0) + 1, until),))


def landed(chunk: Chunk, count: int | None = None, withheld: int = 0) -> Acknowledged:
    return Acknowledged(
        chunk.id, ChunkState.LANDED, len(chunk.rows) if count is None else count, withheld, f"of {chunk.rows}", 8
    )


def empty(chunk: Chunk, withheld: int = 0) -> Acknowledged:
    return Acknowledged(chunk.id, ChunkState.EMPTY, 0, withheld, None, None)


@dataclass
class Delivery:
    """A sink of a dataset of its own, and the lease on it."""

    ledger: Ledger
    dataset: Dataset
    sink: SinkRecord
    lease: Lease = field(init=False)

    def __post_init__(self) -> None:
        self.lease = self.take()

    def take(self, *, seconds: float = 60) -> Lease:
        lease = sinks.leases.take(self.ledger, self.sink.id, seconds=seconds)
        assert lease is not None
        return lease

    def lose(self) -> Lease:
        """Another deliverer comes: its lease."""
        assert sinks.leases.renew(self.ledger, self.lease, seconds=-1)
        return self.take()

    def token(self, mark: Seq | None) -> str:
        return Continuation(LAKE, self.dataset.uuid, mark).encode()

    def settle(self, lo: int, hi: int) -> None:
        """Numbers that are published; a recovered range, because those may stand in several datasets."""
        with self.ledger.write() as connection:
            rows = SeqRange(Seq(lo), Seq(hi))
            restored_blocks.insert_published(
                connection, self.dataset.id, rows, kind=BlockKind.RECOVERED, batch_id=f"{lo}-{hi}"
            )

    def plan(
        self, until: int, *plans: LanePlan, lease: Lease | None = None, waits_upto: int | None = None, **options: str
    ) -> list[Intent] | None:
        stored = intents.store_plan(
            self.ledger,
            lease or self.lease,
            self.sink,
            until=Seq(until),
            lanes=plans,
            options=options,
            token=self.token,
            waits_upto=None if waits_upto is None else Seq(waits_upto),
        )
        self.refresh()
        return stored

    def deliver(self, until: int, *plans: LanePlan) -> list[Intent]:
        """Plan, send all, close."""
        stored = self.plan(until, *plans)
        assert stored is not None
        assert self.acknowledge(*(landed(c) for i in stored for c in i.chunks if c.state is ChunkState.PLANNED))
        assert self.close(stored)
        return stored

    def acknowledge(self, *acks: Acknowledged, lease: Lease | None = None) -> bool:
        return intents.acknowledge(self.ledger, lease or self.lease, acks)

    def close(self, stored: Sequence[Intent], lease: Lease | None = None) -> bool:
        return intents.close(self.ledger, lease or self.lease, self.sink, stored, self.token)

    def refresh(self) -> None:
        with self.ledger.read() as connection:
            self.sink = sinks.get(connection, self.sink.name)

    def lanes(self) -> dict[str, Lane]:
        with self.ledger.read() as connection:
            found = lanes.list_lanes(connection, self.sink, lake=LAKE, dataset=self.dataset.uuid)
        return {lane.partition: lane for lane in found}

    def marks(self) -> dict[str, int | None]:
        return {partition: lane.mark for partition, lane in self.lanes().items()}

    def open(self) -> list[Intent]:
        with self.ledger.read() as connection:
            return intents.open_of(connection, self.sink)

    def work(self) -> sinks.SinkWork:
        with self.ledger.read() as connection:
            return next(w for w in sinks.due(connection) if w.sink.id == self.sink.id)

    def reset(self, start: int | None = None) -> None:
        with self.ledger.write() as connection:
            seq = None if start is None else Seq(start)
            self.sink = sinks.new_generation(connection, self.sink.id, self.sink.generation + 1, seq)
            intents.abandon_open(connection, self.sink)

    def damage(self, statement: str) -> None:
        with self.ledger.write() as connection:
            connection.execute(sa.text(statement), {"sink": self.sink.id})

    def is_refused(self, statement: str) -> bool:
        """Whether the store itself says no."""
        try:
            self.damage(statement)
        except sa.exc.IntegrityError:
            return True
        return False


def add_sink(connection: sa.Connection, dataset: Dataset, start: int | None = None) -> SinkRecord:
    number = next(_numbers)
    return sinks.add(
        connection,
        instance=f"instance-{number}",
        name=f"sink-{number}",
        kind="files",
        dataset=dataset.id,
        options={"path": "out"},
        destination=f"file:///out/{number}",
        start=None if start is None else Seq(start),
    )


def new_delivery(lake: LakeState, *, settled: int | None = 100, partitioned: bool = True) -> Delivery:
    with lake.ledger.write() as connection:
        name = f"default.d{next(_numbers)}"
        dataset = datasets.add(
            connection, name=name, table_uuid=f"uuid-of-{name}", deliver_by=("k",) if partitioned else ()
        )
        made = add_sink(connection, dataset)
    delivery = Delivery(lake.ledger, dataset, made)
    if settled is not None:
        delivery.settle(1, settled)
    return delivery
