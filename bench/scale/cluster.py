"""Ingest and delivery on a Spark cluster of two workers, against plain Spark on the same cluster."""

from __future__ import annotations

from bench import lakes
from bench.deliver.many_rows import DeliveredSide, fill_table
from bench.ingest.driver_memory import SETTINGS
from bench.ingest.rows import PEER, IngestSides
from bench.measure import Bench, Measurement, in_turn
from bench.results import Figure, Goal, Samples
from strandline.lake import Lake, open_lake
from tests.spark_cluster import start_cluster

WORKERS = 2
ROWS = 2_000_000
SAMPLES = 5
_ON = f"on a cluster of {WORKERS} workers"
INGEST = Figure(f"ingest of {ROWS:,} rows {_ON}", "rows/s", PEER, Goal(0.9, "at least"))
DELIVER = Figure(f"{ROWS:,} rows to Parquet files {_ON}", "rows/s", "df.write.parquet", Goal(0.9, "at least"))


def measure(bench: Bench) -> dict[str, Samples]:
    home = bench.work / "lake"
    lakes.new_lake(home).close()
    with start_cluster(bench.work / "cluster", workers=WORKERS) as cluster:
        with (home / "strandline.toml").open("a", encoding="utf-8") as settings:
            settings.write(SETTINGS.format(master=cluster.url))
        with open_lake(home) as lake:
            return _of_ingest(bench, lake) | _of_delivery(bench, lake)


def _of_ingest(bench: Bench, lake: Lake) -> dict[str, Samples]:
    bench.say("making the rows")
    of = IngestSides(lake, bench.work / "source", bench.sized(ROWS, 20_000))
    of.ingest("a_99"), of.plain(99)  # warm-up
    ours, peer = in_turn(bench, SAMPLES, lambda n: of.ingest(f"a_{n}"), of.plain)
    return {INGEST.name: Samples(ours, peer, {"rows": of.rows, "workers": WORKERS})}


def _of_delivery(bench: Bench, lake: Lake) -> dict[str, Samples]:
    rows = bench.sized(ROWS, 20_000)
    fill_table(bench, lake, "events", rows, ordered=True)
    side = DeliveredSide(lake, "events", rows, bench.work)

    def ours(_: int) -> float:
        return side.deliver("files", lambda sink: {"path": str(bench.work / sink)})

    def peer(_: int) -> float:
        return side.write(str(bench.work / "plain"))

    ours(99), peer(99)  # warm-up
    taken, plain = in_turn(bench, SAMPLES, ours, peer)
    return {DELIVER.name: Samples(taken, plain, {"rows": rows, "workers": WORKERS})}


MEASUREMENT = Measurement((INGEST, DELIVER), measure)
