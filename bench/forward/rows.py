"""Rows forwarded to a receiver, against a plain Spark job that encodes and posts the same rows."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bench import frames, lakes
from bench.forward.receiver import DATASET, Receiver, receiving
from bench.measure import Bench, Measurement, in_turn, seconds_of, settle_disk
from bench.results import Figure, Goal, Samples

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from strandline.lake import Lake

SAMPLES = 9
WARM_UPS = 3
CHUNK_ROWS = 5000
FORMS = ("jsonl", "arrow")
NAMES = {"jsonl": "JSON lines", "arrow": "Arrow IPC"}


def _figure(form: str) -> Figure:
    return Figure(
        f"rows forwarded to a receiver on loopback, {NAMES[form]}",
        "rows/s",
        "a plain Spark job that encodes and posts them",
        Goal(1.0, "at least"),
    )


def measure(bench: Bench) -> dict[str, Samples]:
    rows = bench.sized(1_000_000, 20_000)
    found: dict[str, Samples] = {}
    os.environ["STRANDLINE_FORWARD__ALLOW"] = '["127.0.0.1"]'
    with receiving(bench.work / "receiver") as to:
        os.environ["BENCH_TOKEN"] = to.token
        lake = lakes.new_lake(bench.work / "lake")
        lakes.create(lake, DATASET, frames.EVENT_COLUMNS)
        bench.say(f"making {rows:,} rows")
        lake.append(DATASET, frames.events(lake.spark, 0, rows, 8))
        lake.delivery.add("to", DATASET, "forward", {"url": to.url, "token": "env:BENCH_TOKEN"})
        for form in FORMS:

            def ours(n: int, form: str = form) -> float:
                return rows / _forward(lake, rows, form)

            def peer(n: int, form: str = form) -> float:
                return rows / _post(lake, to, form)

            for n in range(WARM_UPS):  # the code of lines is compiled anew for every plan, and Java takes its time
                ours(n), peer(n)
            taken, plain = in_turn(bench, SAMPLES, ours, peer)
            found[_figure(form).name] = Samples(taken, plain, {"rows": rows, "chunk_rows": CHUNK_ROWS})
    return found


def _forward(lake: Lake, rows: int, form: str) -> float:
    """Everything again, as a new generation."""
    lake.delivery.update("to", {"format": form})
    lake.delivery.reset("to")
    settle_disk()

    def tick() -> None:
        report = lake.tick("to").sinks[0]
        if report.rows != rows:
            raise RuntimeError(f"forwarded {report.rows} of {rows} rows: {report.reason}")

    return seconds_of(tick)


def _post(lake: Lake, to: Receiver, form: str) -> float:
    from strandline.core.types import INTERNAL_COLUMNS

    frame = lake.spark.table(f"lake.default.{DATASET}").drop(*INTERNAL_COLUMNS)
    lake.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(CHUNK_ROWS))
    settle_disk()
    took = seconds_of(lambda: _job(frame, _posting(to.url, to.token, form), form))
    lake.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    return took


def _job(frame: DataFrame, posting: Callable[[Iterable[Any]], Iterator[Any]], form: str) -> None:
    from pyspark.sql import functions as F

    if form == "jsonl":
        spelled = [F.col(c).cast("string").alias(c) if c == "amount" else F.col(c) for c in frame.columns]
        frame = frame.select(F.to_json(F.struct(*spelled)).alias("line"))
    frame.mapInArrow(posting, "rows long").agg(F.sum("rows")).collect()


def _posting(url: str, token: str, form: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What someone would write: a batch is a body."""

    def post(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import httpx
        import pyarrow as pa
        import zstandard

        kind = "application/x-ndjson" if form == "jsonl" else "application/vnd.apache.arrow.stream"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind, "Content-Encoding": "zstd"}
        squeeze = zstandard.ZstdCompressor(level=1)
        with httpx.Client(timeout=60) as client:
            for batch in batches:
                if form == "jsonl":
                    body = "\n".join(batch.column("line").to_pylist()).encode()
                else:
                    out = pa.BufferOutputStream()
                    with pa.ipc.new_stream(out, batch.schema) as writer:
                        writer.write_batch(batch)
                    body = out.getvalue().to_pybytes()
                named = headers | {"Idempotency-Key": uuid.uuid4().hex}
                client.post(url, content=squeeze.compress(body), headers=named).raise_for_status()
                yield pa.RecordBatch.from_pylist([{"rows": batch.num_rows}])

    return post


MEASUREMENT = Measurement(tuple(_figure(form) for form in FORMS), measure)
