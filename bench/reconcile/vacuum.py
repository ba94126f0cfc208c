"""A report of the reconciler against `VACUUM … DRY RUN` of Delta Lake: as many files, live and not, in the same Spark.

Both are asked for the first time, when neither has read anything of the table in this process, and again. The Delta
table is made as `many_files.py` makes the Iceberg table: nobody opens its files, so they are empty.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Bench, Measurement, in_turn, settle_disk
from bench.peers import delta
from bench.reconcile.many_files import ENTRIES_PER_MANIFEST, make_files, make_table
from bench.reconcile.orphans import NARROW, forget, report_seconds
from bench.results import Figure, Samples
from strandline.lake import Lake

PEER = f"Delta Lake {delta.version()}: VACUUM, dry run"
FIRST = Figure("a report over 110,000 files, nothing remembered, beside Delta's", "s", PEER, None)
AGAIN = Figure("a report over 110,000 files, manifests remembered, beside Delta's", "s", PEER, None)
_CHECKPOINT_EVERY = 10
"""Commits; Delta's own default."""


def measure(bench: Bench) -> dict[str, Samples]:
    live, stray = bench.sized(100_000, 1_000), bench.sized(10_000, 100)
    lake = delta.lake_with_delta(bench.work / "lake")
    bench.say(f"making {live + stray:,} files, twice")
    make_table(lake, "t", live=live, stray=stray, columns=NARROW)
    table = bench.work / "delta"
    make_delta_table(lake, table, live=live, stray=stray)
    settle_disk()

    def ours(_: int) -> float:
        return report_seconds(lake, stray)

    def peer(_: int) -> float:
        began = time.perf_counter()
        found = len(lake.spark.sql(f"VACUUM delta.`{table}` DRY RUN").collect())
        took = time.perf_counter() - began
        if found != stray:
            raise RuntimeError(f"VACUUM found {found} instead of {stray}")
        return took

    def ours_first(n: int) -> float:
        forget(lake.config.home)
        return ours(n)

    def peer_first(n: int) -> float:
        delta.forget(lake)
        return peer(n)

    sides = (ours_first, ours, peer_first, peer)
    for side in sides:  # warm-up
        side(0)
    first, again, peers_first, peers_again = in_turn(bench, bench.sized(7, 5), *sides)
    size = {"files": live + stray, "columns": NARROW}
    lake.close()
    return {FIRST.name: Samples(first, peers_first, size), AGAIN.name: Samples(again, peers_again, size)}


def make_delta_table(lake: Lake, table: Path, *, live: int, stray: int) -> None:
    fields = ", ".join(f"c{n} {'string' if n % 3 else 'bigint'}" for n in range(NARROW))
    lake.spark.sql(f"CREATE TABLE delta.`{table}` ({fields}) USING delta")
    paths = make_files(table / "data", live, stray)
    version = 0
    while batch := list(itertools.islice(paths, ENTRIES_PER_MANIFEST)):
        version += 1
        _commit(table, version, [str(Path(path).relative_to(table)) for path in batch])
    delta.forget(lake)
    # Commits of Delta's own, until it writes a checkpoint: a table of this size has one.
    values = ", ".join("'x'" if n % 3 else "1" for n in range(NARROW))
    for _ in range(_CHECKPOINT_EVERY - version % _CHECKPOINT_EVERY):
        lake.spark.sql(f"INSERT INTO delta.`{table}` VALUES ({values})")


def _commit(table: Path, version: int, paths: Sequence[str]) -> None:
    now = int(time.time() * 1000)
    lines: list[dict[str, object]] = [{"commitInfo": {"timestamp": now, "operation": "WRITE"}}]
    chance = random.Random(version)
    for path in paths:
        added = {"path": path, "partitionValues": {}, "size": 1 << 20, "modificationTime": now, "dataChange": True}
        lines.append({"add": {**added, "stats": json.dumps(_statistics(chance))}})
    log = table / "_delta_log" / f"{version:020d}.json"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _statistics(chance: random.Random) -> dict[str, object]:
    lower = {
        f"c{n}": f"value {chance.randrange(10**6):06d}" if n % 3 else chance.randrange(10**7) for n in range(NARROW)
    }
    upper = {name: f"{value} z" if isinstance(value, str) else value + 10**7 for name, value in lower.items()}
    nulls = dict.fromkeys(lower, 0)
    return {"numRecords": chance.randint(10**3, 10**6), "minValues": lower, "maxValues": upper, "nullCount": nulls}


MEASUREMENT = Measurement((FIRST, AGAIN), measure)
