"""A lake with something to see on every page, made through the ledger: no JVM."""

from __future__ import annotations

import os
from datetime import timedelta
from math import sin
from pathlib import Path

import pyarrow as pa

from strandline.core.actor import Actor, Trigger, acting_as
from strandline.core.delivery_types import Intent
from strandline.core.records.reconcile_records import Asked, Counts, Done, StorageKind, SweepOutcome
from strandline.core.types import SEQ_COLUMN, Reserved, Seq, SnapshotId, Staged
from strandline.deliver.quarantine.content import object_name, open_objects, packed
from strandline.deliver.sink import Address
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake
from strandline.ledger import tasks
from strandline.ledger.deliver import quarantine
from strandline.ledger.deliver.quarantine import StoredRefusedRow
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks
from strandline.ledger.maintain import retention_holds, runs
from strandline.ledger.reconcile import reconcile_runs
from strandline.serve.pages.history import APART_SECONDS_MIN, SAMPLES_MAX, FigureHistory, HistorySample, sample_of
from strandline.status.report import LakeStatus
from tests.unit.test_cli_sinks import land, leased, promise

COLUMNS = parse_columns(
    [
        {"name": "id", "type": "long", "required": True},
        {"name": "who", "type": "string"},
        {"name": "amount", "type": "decimal(10,2)"},
        {"name": "at", "type": "timestamptz"},
    ]
)
STRAY = "stray-00001.parquet"  # a file that no table names
REFUSED = {2: "422: amount must not be negative", 5: "422: unknown customer"}


def fill(lake: Lake, folder: Path) -> None:
    """Three sinks (one delivers, one has rows in quarantine, one is paused), runs of everything, held rows."""
    with acting_as(Actor("ada", Trigger.COMMAND)):
        for name in ("orders", "payments", "clicks"):
            lake.create_dataset(name, COLUMNS, deliver_by=(), partition_by=None)
        for name, dataset in (("warehouse", "orders"), ("partner", "orders"), ("ledger-export", "payments")):
            lake.delivery.add(name, dataset, "files", {"path": str(folder / name)}, from_now=False)
        for dataset, rows in (("orders", 1200), ("payments", 340), ("orders", 800), ("clicks", 90)):
            append(lake, dataset, rows)
        _reserve(lake, "clicks", 60)
        _deliver(lake, "warehouse", 2340)
        set_aside(lake, "partner")
        lake.delivery.pause("ledger-export")
        _maintain(lake)
        _reconcile(lake)
        with lake.ledger.write() as connection:
            _, lease = tasks.begin(connection, "verify", "warehouse", "node-1", lease_seconds=60)
            assert tasks.end(connection, lease, tasks.TaskOutcome.DONE, result={"ok": True, "sinks": []})


def _reserve(lake: Lake, dataset: str, rows: int) -> Reserved:
    new = blocks.NewBlock(lake.dataset(dataset).id, rows, f"{dataset}-{utc_now():%H%M%S%f}", None)
    held, _ = blocks.reserve(lake.ledger, lake.witness, new, lease_seconds=3600)
    assert isinstance(held, Reserved)
    return held


def append(lake: Lake, dataset: str, rows: int) -> None:
    """A block with real rows in a real snapshot, written by PyIceberg instead of Spark."""
    target, held = lake.dataset(dataset), _reserve(lake, dataset, rows)
    table = lake.catalog.load(target.name)
    numbers = list(range(held.head.rows.lo, held.head.rows.hi + 1))
    values = {"id": numbers, "who": ["ada"] * rows, SEQ_COLUMN: numbers}
    fields = list(table.schema().as_arrow())
    table.append(
        pa.table([pa.array(values.get(f.name, [None] * rows), f.type) for f in fields], schema=pa.schema(fields))
    )
    snapshot = table.current_snapshot()
    assert snapshot is not None
    made = SnapshotId(snapshot.snapshot_id)
    assert blocks.mark_staged(lake.ledger, lake.witness, held, made)
    staged = Staged(held.head, held.fence, made, utc_now())
    assert blocks.mark_published(lake.ledger, staged, row_count=rows, snapshot=made)


def _deliver(lake: Lake, sink: str, until: int) -> list[Intent]:
    intents = promise(lake, sink, until, "", chunk_rows=500)
    for intent in intents:
        land(lake, sink, intent, len(intent.chunks), close=True)
    return intents


def set_aside(lake: Lake, sink: str) -> None:
    """Rows that the sink refused, each in a chunk of its own, at the beginning of an intent that is still open."""
    [intent] = promise(lake, sink, 8, "", chunk_rows=1)
    record, objects = lake.delivery.get(sink), open_objects(lake.config)
    rows = []
    for n, reason in REFUSED.items():
        address = Address(lake.id, record.instance, record.generation, "default.orders", "")
        columns = {"_ingest_seq": pa.array([n], pa.int64()), "id": pa.array([n], pa.int64()), "who": ["grace"]}
        body = packed(pa.table(columns), list(columns))
        objects.put(object_name(address, n), body)
        row = StoredRefusedRow(intent.lane, Seq(n), reason, object_name(address, n), len(body), record.options, "rows")
        rows.append((intent.chunks[n - 1].id, row))
    with leased(lake, sink) as lease:
        assert quarantine.quarantine_rows(lake.ledger, lease, rows)


def _maintain(lake: Lake) -> None:
    orders, sink = lake.dataset("orders"), lake.delivery.get("partner")
    with lake.ledger.write() as connection:
        for kind, outcome, reason in (
            (runs.MaintenanceKind.COMPACT, runs.MaintenanceOutcome.DONE, None),
            (
                runs.MaintenanceKind.RETAIN,
                runs.MaintenanceOutcome.REFUSED,
                "the clock of this machine is behind the newest commit",
            ),
        ):
            run = runs.begin(connection, runs.NewRun(orders.id, kind, "node-1"), lease_seconds=60)
            assert run is not None
            runs.end(connection, run, outcome, reason=reason, result={"files_before": 48, "files_after": 3})
        retention_holds.keep(connection, orders.id, sink.id, rows=640, up_to=Seq(640), now=utc_now())


def _reconcile(lake: Lake) -> None:
    stray = Path(lake.catalog.load("default.orders").location().removeprefix("file://")) / "data" / STRAY
    stray.write_bytes(b"PAR1")
    os.utime(stray, (0, 0))
    sample = {"kind": "orphan", "path": "data/00003-7.parquet", "table": "default.orders", "size": 48_211}
    found = Counts(orphans=3, bytes=144_633)
    ends = (
        SweepOutcome(listed=212, referenced=209, found=found, samples=(sample,)),
        SweepOutcome(listed=212, referenced=209, found=found, planned=found, done=Done(orphans=3), samples=(sample,)),
        SweepOutcome(
            partial=True, listed=180, referenced=209, found=Counts(orphans=1), failures=("data/2026/: timed out",)
        ),
    )
    for number, outcome in enumerate(ends):
        lease = reconcile_runs.take_lease(lake.ledger, seconds=60)
        assert lease is not None
        with lake.ledger.write() as connection:
            run = reconcile_runs.start(connection, Asked(act=number == 1), StorageKind.LOCAL)
            assert reconcile_runs.complete(connection, run, outcome)
        assert reconcile_runs.leases.release(lake.ledger, lease)


def past(now: LakeStatus) -> FigureHistory:
    """Half an hour that ends with the lake as it is: rows come in waves, and sinks catch up with each."""
    history, last = FigureHistory(), sample_of(now, utc_now() - timedelta(seconds=APART_SECONDS_MIN), 0)
    waves = [1 + sin(n / 17) ** 2 + 0.4 * sin(n / 5) ** 2 for n in range(SAMPLES_MAX)]
    arrived, delivered = [0.0], [0.0]
    for rows in reversed(waves):
        arrived.append(arrived[-1] + 800 * rows)
        delivered.append(delivered[-1] + 650 * rows)
    for n in range(SAMPLES_MAX - 1, 0, -1):
        wave = waves[-n] / waves[-1]
        history.add(
            HistorySample(
                last.at - timedelta(seconds=n * APART_SECONDS_MIN),
                -int(arrived[n]),
                {name: None if rows is None else int(rows * wave) for name, rows in last.lag_rows.items()},
                {name: None if s is None else 8 * wave for name, s in last.lag_seconds.items()},
                {name: None if rows is None else rows - int(delivered[n]) for name, rows in last.delivered.items()},
            )
        )
    return history
