"""Files with quotes and with rows that do not fit, against clean files of the same rows: what reading them costs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import types as t

from bench.measure import Bench, Measurement, in_turn
from bench.results import Figure, Goal, Samples
from strandline.ingest.sources import delimited, jsonl
from strandline.ingest.sources.blocks import REJECT
from strandline.ingest.sources.identify import SourceFile, identify
from strandline.ingest.sources.lines import ByteRange

CSV = Figure(
    "reading a CSV with quotes, one row in 100 does not fit", "s", "the same rows, clean", Goal(2.0, "at most")
)
JSON = Figure("reading JSON lines, one row in 100 does not fit", "s", "the same rows, clean", Goal(2.0, "at most"))
_SAMPLES = 5

_FIELDS = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("name", t.StringType()),
        t.StructField("amount", t.DoubleType()),
        t.StructField("note", t.StringType()),
    ]
)


def measure(bench: Bench) -> dict[str, Samples]:
    rows = bench.sized(400_000, 20_000)
    bench.say("writing the files")
    names = ("clean.csv", "dirty.csv", "clean.jsonl", "dirty.jsonl")
    sources = {name: _written(bench.work / name, rows) for name in names}
    sides = [_side(sources[name], rows) for name in names]
    clean_csv, dirty_csv, clean_json, dirty_json = in_turn(bench, _SAMPLES, *sides)
    return {
        CSV.name: Samples(dirty_csv, clean_csv, {"rows": rows, "bytes": sources["dirty.csv"].size_bytes}),
        JSON.name: Samples(dirty_json, clean_json, {"rows": rows, "bytes": sources["dirty.jsonl"].size_bytes}),
    }


def _side(source: SourceFile, rows: int) -> Callable[[int], float]:
    return lambda _: _seconds(source, rows, source.path.stem == "dirty")


def _written(path: Path, rows: int) -> SourceFile:
    line = _json_line if path.suffix == ".jsonl" else _csv_line
    with path.open("w", encoding="utf-8", newline="") as out:
        if path.suffix == ".csv":
            out.write("id,at,name,amount,note\n")
        out.writelines(line(i, dirty=path.stem == "dirty") for i in range(rows))
    return identify(path)


def _identity(i: int, dirty: bool) -> int | str:
    return f"x{i}" if dirty and i % 100 == 57 else i


def _csv_line(i: int, *, dirty: bool) -> str:
    name, note = ('"name, first"', '"a ""quoted"" note"') if dirty else ("name and first", "a note and its text")
    return f"{_identity(i, dirty)},2026-01-01T00:00:{i % 60:02d}Z,{name},{i * 0.5},{note}\n"


def _json_line(i: int, *, dirty: bool) -> str:
    row = {"id": _identity(i, dirty), "at": f"2026-01-01T00:00:{i % 60:02d}Z", "name": "name, first", "amount": i * 0.5}
    return json.dumps(row | {"note": "a note"}) + "\n"


def _seconds(source: SourceFile, rows: int, dirty: bool) -> float:
    span = ByteRange(0, source.size_bytes, 1)
    began = time.process_time()
    if source.format == "csv":
        batches = delimited.read_records(source, span, _FIELDS, delimited.read_header(source, _FIELDS) or ())
    else:
        batches = jsonl.read_range(source, span, _FIELDS)
    seen = rejected = 0
    for batch in batches:
        seen += batch.num_rows
        rejected += batch.num_rows - batch.column(batch.schema.get_field_index(REJECT)).null_count
    took = time.process_time() - began
    if seen != rows or (rejected > 0) != dirty:
        raise RuntimeError(f"{source.path}: {seen} rows, {rejected} rejected")
    return took


MEASUREMENT = Measurement((CSV, JSON), measure)
