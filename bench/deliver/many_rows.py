"""Four million rows to Parquet, in files and on S3, against Spark writing the same rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import frames, lakes
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.results import Figure, Goal, Samples
from strandline.lake import Lake

SAMPLES = 5
LAYOUTS = {"in order": 2.0, "in any order": 1.0}


def _figure(layout: str) -> Figure:
    return Figure(
        f"4 million rows to Parquet files, {layout}", "rows/s", "df.write.parquet", Goal(LAYOUTS[layout], "at least")
    )


S3 = Figure(
    "4 million rows to Parquet on S3", "rows/s", "Spark writing the same to the same server", Goal(2.0, "at least")
)


def fill_table(bench: Bench, lake: Lake, name: str, rows: int, *, ordered: bool) -> None:
    lakes.create(lake, name, frames.EVENT_COLUMNS)
    bench.say(f"filling a table of {rows:,} rows, {'in order' if ordered else 'in any order'}")
    lake.append(name, frames.events(lake.spark, 0, rows, 8))
    if not ordered:
        lake.spark.sql(
            f"CALL lake.system.rewrite_data_files(table => 'default.{name}', strategy => 'sort', "
            "sort_order => 'user_id', options => map('rewrite-all', 'true'))"
        )


class DeliveredSide:
    """One delivery into a new place each time, and the same rows by Spark itself."""

    def __init__(self, lake: Lake, name: str, rows: int, work: Path) -> None:
        self.lake, self.name, self.rows, self.work = lake, name, rows, work
        self.count = 0

    def deliver(self, kind: str, options: Callable[[str], dict[str, str]]) -> float:
        self.count += 1
        sink = f"{self.name}-{kind}-{self.count}"
        self.lake.delivery.add(sink, self.name, kind, options(sink))
        settle_disk()
        took = seconds_of(lambda: self._tick(sink))
        self.lake.delivery.remove(sink)
        shutil.rmtree(self.work / sink, ignore_errors=True)
        return self.rows / took

    def _tick(self, sink: str) -> None:
        report = self.lake.tick(sink).sinks[0]
        if report.rows != self.rows:
            raise RuntimeError(f"delivered {report.rows} of {self.rows} rows: {report.reason}")

    def write(self, target: str) -> float:
        settle_disk()
        frame = self.lake.spark.table(f"lake.default.{self.name}")
        took = seconds_of(lambda: frame.write.mode("overwrite").parquet(target))
        if not target.startswith("s3"):
            shutil.rmtree(target, ignore_errors=True)
        return self.rows / took


def measure(bench: Bench) -> dict[str, Samples]:
    lake = lakes.new_lake(bench.work / "lake")
    rows = bench.sized(4_000_000, 20_000)
    found: dict[str, Samples] = {}
    for layout in LAYOUTS:
        name = layout.replace(" ", "_")
        fill_table(bench, lake, name, rows, ordered=layout == "in order")
        side = DeliveredSide(lake, name, rows, bench.work)

        def ours(n: int, side: DeliveredSide = side) -> float:
            return side.deliver("files", lambda sink: {"path": str(bench.work / sink)})

        def peer(n: int, side: DeliveredSide = side) -> float:
            return side.write(str(bench.work / "plain"))

        ours(0), peer(0)  # warm-up
        taken, plain = in_turn(bench, SAMPLES, ours, peer)
        found[_figure(layout).name] = Samples(taken, plain, {"rows": rows})
    return found


def measure_s3(bench: Bench) -> dict[str, Samples]:
    """The peer writes an Iceberg table: Spark has no other way to S3 here, and the files are the same Parquet."""
    from strandline.iceberg.session.lake_session import open_session
    from tests.servers import start_s3

    rows = bench.sized(4_000_000, 20_000)
    server = start_s3()
    os.environ |= {"BENCH_ACCESS_KEY": server.access_key, "BENCH_SECRET_KEY": server.secret_key}
    try:
        lake = lakes.new_lake(bench.work / "lake")
        open_session(lake.config, with_s3=True)  # a running JVM cannot be given more jars
        fill_table(bench, lake, "events", rows, ordered=True)
        side = DeliveredSide(lake, "events", rows, bench.work)
        _away(lake, bench.work / "away.db", f"s3://{server.make_bucket()}/plain", server)
        bucket = server.make_bucket()

        def options(sink: str) -> dict[str, str]:
            return {
                "url": f"s3://{bucket}/{sink}",
                "endpoint": server.endpoint,
                "access_key": "env:BENCH_ACCESS_KEY",
                "secret_key": "env:BENCH_SECRET_KEY",
            }

        def plain(n: int) -> float:
            settle_disk()
            frame = lake.spark.table("lake.default.events")
            took = seconds_of(lambda: frame.writeTo(f"away.plain.events_{n}").using("iceberg").create())
            return rows / took

        side.deliver("s3", options), plain(99)  # warm-up
        ours, peer = in_turn(bench, SAMPLES, lambda n: side.deliver("s3", options), plain)
        return {S3.name: Samples(ours, peer, {"rows": rows})}
    finally:
        server.server.stop()


def _away(lake: Lake, catalog: Path, warehouse: str, server: Any) -> None:
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{catalog}",
        ".jdbc.schema-version": "V1",
        ".warehouse": warehouse,
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".client.region": server.region,
        ".s3.endpoint": server.endpoint,
        ".s3.path-style-access": "true",
        ".s3.access-key-id": server.access_key,
        ".s3.secret-access-key": server.secret_key,
    }
    for key, value in settings.items():
        lake.spark.conf.set(f"spark.sql.catalog.away{key}", value)
    lake.spark.sql("CREATE NAMESPACE away.plain")


TO_S3 = Measurement((S3,), measure_s3)
FILES = Measurement(tuple(_figure(layout) for layout in LAYOUTS), measure)
