"""What batches, ticks, chunks, lanes and reports cost: transactions of a PostgreSQL ledger, requests to a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Bench, Measurement
from bench.results import Figure, Goal, Samples
from bench.scale.counted import Cost, Counted
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake
from strandline.lake_admin import init_lake

SAMPLES = 5
MANY = 11
"""Of what a step has one of: the tenth of the difference is what one more costs."""
CHUNK_ROWS = 100
BLOCKS, FACTOR = 10, 10
TABLES = 7
KEYS = ("BENCH_ACCESS_KEY", "BENCH_SECRET_KEY")

T, R = "transactions", "requests"


def _at_most(name: str, unit: str, bound: float | None) -> Figure:
    """The bounds are the costs that docs/scale.md names."""
    return Figure(name, unit, None, None if bound is None else Goal(bound, "at most", "ours"))


BATCH_T = _at_most("ledger: a batch", T, 11)
IDLE_T = _at_most("ledger: an idle tick of all sinks", T, 3)
TICK_T = _at_most("ledger: a tick that sends one chunk", T, 27)
CHUNK_T = _at_most("ledger: each further chunk of a tick", T, 1)
LANE_T = _at_most("ledger: each further lane of a tick", T, 1)
BATCH_R = _at_most("bucket: a batch of one file", R, 25)
FILE_R = _at_most("bucket: each further file of a batch", R, 1)
IDLE_R = _at_most("bucket: an idle tick of all sinks", R, 0)
TICK_R = _at_most("bucket: a tick that reads one new file", R, 14)
GROWN_R = Figure(
    f"bucket: the same after {BLOCKS * FACTOR:,} batches", R, f"after {BLOCKS:,} batches", Goal(1.3, "at most")
)
REPORT_R = _at_most(f"bucket: a report of the reconciler on {TABLES} tables, after {BLOCKS:,} batches", R, None)
REPORT_BATCH_R = _at_most("bucket: what each further batch adds to a report", R, 4)
SINK_R = _at_most("an S3 sink: a tick that sends one object", R, 32)
OBJECT_R = _at_most("an S3 sink: each further object of a tick", R, 4)
NEW_BYTES = _at_most(f"metadata that a batch writes after {BLOCKS:,} batches", "bytes", None)
GROWN_BYTES = _at_most(f"metadata that a batch writes after {BLOCKS * FACTOR:,} batches", "bytes", None)
LISTED_BYTES = _at_most("metadata that a batch writes, for each earlier one that has not expired", "bytes", 5_000)


class Site:
    """A lake in PostgreSQL and a bucket, and the datasets whose costs are compared."""

    def __init__(self, bench: Bench, lake: Lake, log: Path, bucket: Path, url: str) -> None:
        self.bench, self.lake, self.bucket, self.url = bench, lake, bucket, url
        self.counted = Counted(lake, log)
        self.cost = self.counted.cost

    def add_dataset(self, name: str, **options: list[str]) -> None:
        columns = parse_columns([{"name": "n", "type": "long"}, {"name": "k", "type": "string"}])
        self.lake.create_dataset(name, columns, **options)

    def append(self, name: str, rows: int = CHUNK_ROWS, *, files: int = 1, lanes: int = 1) -> Cost:
        frame = self.lake.spark.range(0, rows, 1, files).selectExpr("id AS n", f"'k' || id % {lanes} AS k")
        return self.cost(lambda: self.lake.append(name, frame))

    def add_sink(self, name: str, dataset: str, kind: str = "files") -> None:
        options = {"path": str(self.bench.work / name)}
        if kind == "s3":
            options = {"url": f"{self.url}/{name}", **_keys_and_endpoint(self.lake)}
        self.lake.delivery.add(name, dataset, kind, {**options, "chunk_rows_max": str(CHUNK_ROWS)}, from_now=True)

    def tick(self, sink: str) -> Cost:
        return self.cost(lambda: self.lake.tick(sink))

    def metadata_bytes(self, dataset: str) -> int:
        [folder] = self.bucket.rglob(f"{dataset}/metadata")
        return sum(file.stat().st_size for file in folder.iterdir())


def _keys_and_endpoint(lake: Lake) -> dict[str, str]:
    endpoint = lake.config.settings.warehouse.endpoint or ""
    return {"endpoint": endpoint, "access_key": f"env:{KEYS[0]}", "secret_key": f"env:{KEYS[1]}"}


@contextmanager
def _site(bench: Bench) -> Iterator[Site]:
    from tests.servers import start_postgres, start_s3

    s3, postgres = start_s3(access_log=True), start_postgres()
    try:
        os.environ |= dict(zip(KEYS, (s3.access_key, s3.secret_key), strict=True))
        bucket, home = s3.make_bucket(), bench.work / "lake"
        home.mkdir()
        (home / "strandline.toml").write_text(
            f'[ledger]\nurl = "{postgres.create_database()}"\n'
            f'[warehouse]\nurl = "s3://{bucket}/lake"\nendpoint = "{s3.endpoint}"\n'
            f'access_key = "env:{KEYS[0]}"\nsecret_key = "env:{KEYS[1]}"\n',
            "utf-8",
        )
        with init_lake(home) as lake:
            yield Site(bench, lake, s3.access_log, s3.server.folder / "data" / bucket, f"s3://{bucket}")
    finally:
        postgres.server.stop()
        s3.server.stop()


def measure(bench: Bench) -> dict[str, Samples]:
    with _site(bench) as site:
        return {**_of_batches(site), **_of_ticks(site), **_of_growth(site)}


def _of_batches(site: Site) -> dict[str, Samples]:
    site.bench.say("batches")
    site.add_dataset("batches")
    site.append("batches")  # warm-up
    one, many = ([site.append("batches", files=files) for _ in range(SAMPLES)] for files in (1, MANY))
    return {
        BATCH_T.name: _samples(one, _transactions),
        BATCH_R.name: _samples(one, _requests, {"each": dict(one[-1].requests)}),
        FILE_R.name: _each_further(one, many, _requests),
    }


def _of_ticks(site: Site) -> dict[str, Samples]:
    site.bench.say("ticks")
    shapes = {"one": (1, 1), "chunks": (MANY, 1), "lanes": (MANY, MANY), "objects": (1, 1), "more_objects": (MANY, 1)}
    costs: dict[str, list[Cost]] = {}
    for name, (chunks, lanes) in shapes.items():
        site.add_dataset(name, deliver_by=["k"] if name == "lanes" else [])
        site.add_sink(name, name, "s3" if "objects" in name else "files")
        costs[name] = []
        for n in range(SAMPLES + 2):  # two for warm-up, and for the first record of a lane
            site.append(name, chunks * CHUNK_ROWS, lanes=lanes)
            cost = site.tick(name)
            costs[name] += [cost] if n > 1 else []
    idle = [site.cost(site.lake.tick) for _ in range(SAMPLES)]
    return {
        IDLE_T.name: _samples(idle, _transactions),
        IDLE_R.name: _samples(idle, _requests),
        TICK_T.name: _samples(costs["one"], _transactions),
        CHUNK_T.name: _each_further(costs["one"], costs["chunks"], _transactions),
        LANE_T.name: _each_further(costs["one"], costs["lanes"], _transactions),
        TICK_R.name: _samples(costs["one"], _requests, {"each": dict(costs["one"][-1].requests)}),
        SINK_R.name: _samples(costs["objects"], _requests, {"each": dict(costs["objects"][-1].requests)}),
        OBJECT_R.name: _each_further(costs["objects"], costs["more_objects"], _requests),
    }


def _of_growth(site: Site) -> dict[str, Samples]:
    """As the number of batches grows that nobody has compacted or expired."""
    site.add_dataset("grown")
    site.add_sink("grown", "grown")
    ticks, reports, written = [], [], []
    sizes = [BLOCKS, site.bench.sized(BLOCKS * FACTOR, 2 * BLOCKS)]
    batches = 0
    for size in sizes:
        while batches < size - SAMPLES:
            batches += 1
            site.bench.say(f"batch {batches} of {sizes[-1]}")
            site.append("grown")
        site.tick("grown")
        ticks.append([])
        written.append([])
        for _ in range(SAMPLES):
            before = site.metadata_bytes("grown")
            site.append("grown")
            written[-1].append(site.metadata_bytes("grown") - before)
            ticks[-1].append(site.tick("grown"))
            batches += 1
        reports.append([site.cost(site.lake.reconcile) for _ in range(SAMPLES)])
    more = sizes[1] - sizes[0]
    return {
        GROWN_R.name: Samples(
            [_requests(c) for c in ticks[1]], [_requests(c) for c in ticks[0]], {"batches": sizes[1]}
        ),
        REPORT_R.name: _samples(reports[0], _requests, {"each": dict(reports[0][-1].requests)}),
        REPORT_BATCH_R.name: _each_further(reports[0], reports[1], _requests, more),
        NEW_BYTES.name: Samples(written[0], None, {"batches": sizes[0]}),
        GROWN_BYTES.name: Samples(written[1], None, {"batches": sizes[1]}),
        LISTED_BYTES.name: Samples(
            [(grown - new) / more for new, grown in zip(*written, strict=True)], None, {"batches": more}
        ),
    }


def _transactions(cost: Cost) -> float:
    return cost.transactions


def _requests(cost: Cost) -> float:
    return cost.requests_made


def _samples(costs: list[Cost], of: Callable[[Cost], float], size: dict[str, object] | None = None) -> Samples:
    return Samples([of(cost) for cost in costs], None, size or {})


def _each_further(one: list[Cost], many: list[Cost], of: Callable[[Cost], float], more: int = MANY - 1) -> Samples:
    return Samples([(of(m) - of(o)) / more for o, m in zip(one, many, strict=True)], None, {"more": more})


FIGURES = (
    BATCH_T, IDLE_T, TICK_T, CHUNK_T, LANE_T, BATCH_R, FILE_R, IDLE_R, TICK_R, GROWN_R, SINK_R, OBJECT_R, REPORT_R,
    REPORT_BATCH_R, NEW_BYTES, GROWN_BYTES, LISTED_BYTES,
)  # fmt: skip
MEASUREMENT = Measurement(FIGURES, measure)
