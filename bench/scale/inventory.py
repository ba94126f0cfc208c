"""The reconciler's Spark way over an inventory of very many files. The live files are in the table's manifests and in
the inventory, and nowhere else: neither is opened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Bench, Measurement, settle_disk
from bench.reconcile.many_files import AGE_DAYS, live_path, make_table
from bench.results import Figure, Goal, Samples
from strandline.core.records.reconcile_records import Asked
from strandline.lake import Lake
from strandline.lake_admin import init_lake

ENTRIES = (100_000, 1_000_000, 10_000_000)
SAMPLES = 5
STRAY_OF = 1_000
"""One file of so many is an orphan."""
COLUMNS = 12
GROUP_ROWS = 100_000
PICTURE = "a report on Spark by entries of an inventory"


def _whole(entries: int) -> Figure:
    return Figure(f"a report on Spark over an inventory of {entries:,} files", "s", None, None)


PER_ENTRY = Figure(
    f"time per entry of an inventory of {ENTRIES[2]:,} files", "µs", f"of {ENTRIES[1]:,} files", Goal(1.3, "at most")
)


def _inventory(lake: Lake, name: str, folder: Path, live: int) -> Path:
    """As a store exports it: files that are older than the grace period."""
    table = lake.catalog.load(name)
    data = Path(table.location().removeprefix("file://")) / "data"
    file, at = folder / f"{name}.parquet", datetime.now(UTC) - timedelta(days=AGE_DAYS)
    schema = pa.schema([("key", pa.string()), ("size", pa.int64()), ("last_modified", pa.timestamp("ms", "UTC"))])
    with pq.ParquetWriter(file, schema) as writer:
        all_keys = _keys(data, live)
        while keys := list(islice(all_keys, GROUP_ROWS)):
            writer.write_table(pa.table([keys, [1] * len(keys), [at] * len(keys)], schema=schema))
    return file


def _keys(data: Path, live: int) -> Iterator[str]:
    yield from (live_path(data, n) for n in range(live))
    # The files that are there: orphans, and those of the one row that Spark has written.
    yield from (str(path) for path in sorted(data.parent.rglob("*")) if path.is_file())


def _lake(home: Path, entries: int) -> Lake:
    home.mkdir()
    (home / "strandline.toml").write_text(
        f"[reconcile]\nreferences_max = {min(2_000_000, entries // 2)}\nrun_seconds_max = 86400\n", "utf-8"
    )
    return init_lake(home)


def measure(bench: Bench) -> dict[str, Samples]:
    found: dict[str, Samples] = {}
    seconds: dict[int, list[float]] = {}
    for entries in ENTRIES:
        files = bench.sized(entries, entries // 500)
        stray = max(1, files // STRAY_OF)
        lake = _lake(bench.work / f"lake{entries}", files)
        bench.say(f"making an inventory of {files:,} files")
        name = make_table(lake, "t", live=files - stray, stray=stray, columns=COLUMNS, on_disk=False)
        inventory = _inventory(lake, name, bench.work, files - stray)
        settle_disk()
        seconds[entries] = [_report(bench, lake, inventory, stray, n) for n in range(SAMPLES + 1)][1:]
        shape = {"picture": PICTURE, "series": "on Spark", "x": entries / ENTRIES[0]}
        shape |= {"x_name": f"files, 1× is {ENTRIES[0]:,}", "files": files}
        found[_whole(entries).name] = Samples(seconds[entries], None, shape)
        lake.close()
    each = [[s / bench.sized(n, n // 500) * 1e6 for s in seconds[n]] for n in ENTRIES[1:]]
    found[PER_ENTRY.name] = Samples(each[1], each[0], {"files": ENTRIES[2]})
    return found


def _report(bench: Bench, lake: Lake, inventory: Path, stray: int, number: int) -> float:
    bench.say(f"report {number} over {inventory.name}")
    began = time.perf_counter()
    run = lake.reconciler.run(Asked(False, False, False), inventory_file=inventory)
    took = time.perf_counter() - began
    if run.aborted is not None or run.outcome.found.orphans != stray or run.outcome.found.missing:
        raise RuntimeError(f"found {run.outcome.found} instead of {stray} orphans; {run.why}")
    return took


MEASUREMENT = Measurement((*(_whole(entries) for entries in ENTRIES), PER_ENTRY), measure)
