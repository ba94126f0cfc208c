"""A lake with many datasets, sinks, lanes and runs. Its tables are empty: only the ledger and the catalog are read."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from bench import frames, lakes
from strandline.core.delivery_types import Acknowledged, ChunkPlan, ChunkState, LanePlan, SinkRecord
from strandline.core.read_token import Continuation
from strandline.core.roles import Role
from strandline.core.types import BlockKind, Dataset, Seq, SeqRange
from strandline.lake import Lake
from strandline.ledger.deliver import intents, sinks
from strandline.ledger.engine import Connection, utc_now
from strandline.ledger.ingest import datasets, restored_blocks
from strandline.ledger.schema.maintain import maintenance_run

ROWS = 1000  # that every sink has got


def fill(home: Path, *, tables: int, sinks_count: int, lanes: int, runs: int) -> str:
    """Makes the lake. Returns the secret of a token that may read it."""
    with lakes.new_lake(home) as lake:
        made = make_datasets(lake, tables)
        _add_runs(lake, made, runs)
        for n in range(sinks_count):
            add_sink(lake, made[n % len(made)], f"sink{n:03}", lanes)
        lake.status()  # whatever is counted once
        return lake.receiver.create_token("bench", role=Role.READ)[1]


def make_datasets(lake: Lake, count: int) -> list[Dataset]:
    """One that is created, and copies of it: creating a thousand would take longer than everything that is measured."""
    first = lakes.create(lake, "d0000", frames.EVENT_COLUMNS)
    original = lake.catalog.load(first.name)
    path = Path(original.metadata_location.removeprefix("file://"))
    text, folder = path.read_text("utf-8"), Path(original.location().removeprefix("file://"))
    made, rows = [first], []
    with lake.ledger.write() as connection:
        for n in range(1, count):
            name, identity = f"d{n:04}", str(uuid.UUID(int=n + 1))
            copy = folder.with_name(name) / "metadata" / path.name
            copy.parent.mkdir(parents=True)
            copy.write_text(
                text.replace(first.table_uuid, identity).replace(str(folder), str(folder.with_name(name))), "utf-8"
            )
            rows.append((name, f"file://{copy}"))
            made.append(datasets.add(connection, name=f"default.{name}", table_uuid=identity))
    with closing(sqlite3.connect(lake.config.path(lake.config.settings.catalog.path))) as catalog:
        catalog.executemany(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
            "SELECT catalog_name, table_namespace, ?, ?, iceberg_type FROM iceberg_tables WHERE table_name = 'd0000'",
            rows,
        )
        catalog.commit()
    return made


def _add_runs(lake: Lake, made: list[Dataset], runs: int) -> None:
    now = utc_now()
    kinds = ("compact", "retain", "expire")
    rows = [
        {
            "dataset_id": made[n % len(made)].id,
            "kind": kinds[n // len(made) % len(kinds)],
            "node": "bench:1",
            "dry_run": False,
            "by_schedule": True,
            "started_at": now - timedelta(minutes=runs - n),
            "heartbeat_at": now - timedelta(minutes=runs - n),
            "ended_at": now - timedelta(minutes=runs - n),
            "outcome": "done",
        }
        for n in range(runs)
    ]
    with lake.ledger.write() as connection:
        connection.execute(maintenance_run.insert(), rows)


def add_sink(lake: Lake, dataset: Dataset, name: str, lanes: int) -> SinkRecord:
    """One that has all rows up to `ROWS`."""
    with lake.ledger.write() as connection:
        add_rows(connection, dataset, f"rows of {name}", 1)
        record = sinks.add(
            connection,
            instance=name,
            name=name,
            kind="files",
            dataset=dataset.id,
            options={"path": name},
            destination=f"file:///{name}",
            start=None,
        )
    pass_of(lake, record, dataset, ROWS, lanes)
    return record


def add_rows(connection: Connection, dataset: Dataset, batch: str, first: int) -> None:
    """In the ledger alone."""
    rows = SeqRange(Seq(first), Seq(first + ROWS - 1))
    restored_blocks.insert_published(connection, dataset.id, rows, kind=BlockKind.RECOVERED, batch_id=batch)


def pass_of(lake: Lake, record: SinkRecord, dataset: Dataset, until: int, lanes: int) -> None:
    """What a deliverer does in the ledger when each lane of a sink gets a chunk of the last `ROWS` rows."""
    ledger, first, mark = lake.ledger, until - ROWS + 1, Seq(until)
    lease = sinks.leases.take(ledger, record.id, seconds=600)
    if lease is None:
        raise RuntimeError(f"{record.name} has a lease already")

    def token(seq: Seq | None) -> str:
        return Continuation(lake.id, dataset.table_uuid, seq).encode()

    chunk = (ChunkPlan(SeqRange(Seq(first), mark), ROWS // lanes),)
    partitions = [""] if lanes == 1 else [f"k={n}" for n in range(lanes)]
    plan = [LanePlan(partition, None if first == 1 else Seq(first - 1), mark, chunk) for partition in partitions]
    stored = intents.store_plan(ledger, lease, record, until=mark, lanes=plan, options={}, token=token) or []
    intents.acknowledge(
        ledger,
        lease,
        [Acknowledged(c.id, ChunkState.LANDED, ROWS // lanes, 0, "digest", 8) for i in stored for c in i.chunks],
    )
    intents.close(ledger, lease, record, stored, token)
    sinks.leases.release(ledger, lease)
