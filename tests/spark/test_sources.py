"""Real files through Spark: every format and compression, damage, and what is told about it."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import queue
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from strandline.core.errors import InputError, SchemaError
from strandline.iceberg.session.job_watch import counted_tasks
from strandline.ingest import stamp
from strandline.ingest.reject_file import rejected_rows
from strandline.ingest.sources import lines
from strandline.ingest.sources.blocks import LINE, RAW, REJECT
from strandline.ingest.sources.failures import translate
from strandline.ingest.sources.identify import identify
from strandline.ingest.sources.read import read_source

UTC = dt.UTC
SIMPLE = t.StructType([t.StructField("id", t.LongType(), False), t.StructField("name", t.StringType())])
INNER = t.StructType([t.StructField("p", t.IntegerType(), False), t.StructField("q", t.DoubleType())])
EVERY = t.StructType(
    [
        t.StructField("b", t.BooleanType()),
        t.StructField("i", t.IntegerType()),
        t.StructField("l", t.LongType(), False),
        t.StructField("f", t.FloatType()),
        t.StructField("d", t.DoubleType()),
        t.StructField("n", t.DecimalType(9, 2)),
        t.StructField("s", t.StringType()),
        t.StructField("x", t.BinaryType()),
        t.StructField("day", t.DateType()),
        t.StructField("ts", t.TimestampNTZType()),
        t.StructField("tz", t.TimestampType()),
        t.StructField("o", INNER),
        t.StructField("a", t.ArrayType(t.StringType())),
        t.StructField("m", t.MapType(t.StringType(), t.LongType())),
        t.StructField("deep", t.ArrayType(t.MapType(t.StringType(), INNER))),
    ]
)

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda b: b,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(PACK[path.suffix if path.suffix in PACK else ""](data))
    return path


def read(spark: SparkSession, path: Path, fields: t.StructType) -> DataFrame:
    return read_source(spark, identify(path), fields).frame


def rows(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in sorted(df.collect(), key=lambda row: row[LINE])]


def rejected(df: DataFrame) -> list[tuple[int, str, str]]:
    return [(r[LINE], r[REJECT], r[RAW]) for r in rows(df) if r[REJECT] is not None]


def failure(action: Callable[[], Any], path: Path) -> InputError:
    """What a person is told when the action fails."""
    with pytest.raises((PySparkException, Py4JJavaError)) as e:
        action()
    told = translate(e.value, identify(path))
    assert isinstance(told, InputError), e.value
    assert "Traceback" not in told.message
    assert path.name in told.message
    return told


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_reader_counts_its_rows_as_spark_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(lines, "RANGE_BYTES_MIN", 16)
    good, bad = ('{"id": 1}\n', '{"id": "x"}\n') if kind == "jsonl" else ("1,\n", "x,\n")
    text = "" if kind == "jsonl" else "id,name\n"
    found = read_source(spark, identify(write(tmp_path, f"a.{kind}", text + (good * 7 + bad) * 3)), SIMPLE)
    assert found.count is not None
    columns = SIMPLE.fieldNames()
    pinned = stamp.pin(spark, found.frame, rejects=stamp.Rejects(REJECT, (LINE, RAW)))
    assert stamp.counted_by_source(found.count(), pinned, columns) == stamp.count(pinned, columns, digest=False)
    assert pinned.partitions > 1 or kind == "csv"


@pytest.mark.parametrize("packed", list(PACK))
def test_json_lines_are_read_whatever_they_are_packed_in(spark: SparkSession, tmp_path: Path, packed: str) -> None:
    text = '\ufeff{"id": 1, "name": "a"}\r\n\r\n  \n\t{"id": 2} \n{"id": "x"}\n{"id": 4, "name": null}'
    df = read(spark, write(tmp_path, "a.jsonl" + packed, text), SIMPLE)
    assert df.columns == ["id", "name", LINE, REJECT, RAW]
    assert [(r["id"], r["name"], r[LINE]) for r in rows(df)] == [
        (1, "a", 1),
        (2, None, 4),
        (None, None, 5),
        (4, None, 6),
    ]
    assert rejected(df) == [(5, 'column "id": "x" is not a long', '{"id": "x"}')]


@pytest.mark.parametrize("packed", list(PACK))
def test_csv_is_read_whatever_it_is_packed_in(spark: SparkSession, tmp_path: Path, packed: str) -> None:
    text = '\ufeffname,id\r\n"a, ""b""\r\nc",1\r\n\r\n"",2\r\n,3\r\nx\r\nx,y\r\n1,2,3\r\n5" pipe,8\r\n"q"r,9\r\nz,'
    df = read(spark, write(tmp_path, "a.csv" + packed, text), SIMPLE)
    fitting = [(r[LINE], r["id"], r["name"]) for r in rows(df) if r[REJECT] is None]
    assert fitting == [(2, 1, 'a, "b"\r\nc'), (5, 2, ""), (6, 3, None), (10, 8, '5" pipe')]
    assert rejected(df) == [
        (7, "1 field, expected 2", "x"),
        (8, 'column "id": "y" is not a long', "x,y"),
        (9, "3 fields, expected 2", "1,2,3"),
        (11, "there is text after the closing quote of a field", '"q"r,9'),
        (12, 'column "id" is empty and required', "z,"),
    ]


def every_row() -> dict[str, Any]:
    return {
        "b": True,
        "i": -5,
        "l": 2**62,
        "f": 1.5,
        "d": 0.1,
        "n": Decimal("1234567.89"),
        "s": "é😀",
        "x": b"\x00\xff",
        "day": dt.date(2026, 1, 2),
        "ts": dt.datetime(2026, 1, 2, 3, 4, 5, 6),
        "tz": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "o": {"p": 1, "q": None},
        "a": ["x", None, ""],
        "m": {"k": 1, "": None},
        "deep": [{"k": {"p": 7, "q": 2.0}}, None],
    }


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Without what only the reader adds, times in UTC as Python gives them."""
    own = {k: v for k, v in row.items() if k not in (LINE, REJECT, RAW)}
    own["x"] = None if own["x"] is None else bytes(own["x"])
    return own


def moments(df: DataFrame) -> DataFrame:
    """collect() turns a timestamptz into this machine's local time; as text it stays UTC."""
    return df.withColumn("tz", F.col("tz").cast("string"))


def test_every_type_comes_through_json_lines(spark: SparkSession, tmp_path: Path) -> None:
    full = every_row() | {"n": "1234567.89", "x": "AP8=", "day": "2026-01-02"}
    full |= {"ts": "2026-01-02T03:04:05.000006", "tz": "2026-01-02T04:04:05.000006+01:00"}
    special = {"l": 1, "f": "NaN", "d": "-Infinity", "o": None, "deep": []}
    text = "\n".join(json.dumps(row) for row in [full, {"l": 0}, special] + [full] * 50)
    df = read(spark, write(tmp_path, "a.jsonl", text), EVERY)
    assert df.schema.fields[:-3] == [t.StructField(f.name, f.dataType, True) for f in EVERY]
    first, empty, odd, *rest = rows(moments(df))
    expected = every_row() | {"tz": "2026-01-02 03:04:05.000006"}
    assert plain(first) == expected
    assert all(plain(r) == expected for r in rest)
    assert all(v is None for k, v in plain(empty).items() if k != "l")
    assert math.isnan(odd["f"])
    assert odd["d"] == -math.inf
    assert (odd["o"], odd["deep"]) == (None, [])


def test_every_flat_type_comes_through_csv(spark: SparkSession, tmp_path: Path) -> None:
    flat = t.StructType(EVERY.fields[:11])
    line = "TRUE,-5,4611686018427387904,1.5,0.1,1234567.89,é😀,AP8="
    line += ",2026-01-02,2026-01-02 03:04:05.000006,2026-01-02T03:04:05.000006Z"
    text = ",".join(flat.fieldNames()) + "\n" + f"{line}\n" * 3 + ",,1,NaN,Infinity,,,,,,\n"
    *full, odd = rows(moments(read(spark, write(tmp_path, "a.csv", text), flat)))
    expected = {k: v for k, v in every_row().items() if k in flat.fieldNames()} | {"tz": "2026-01-02 03:04:05.000006"}
    assert [plain(r) for r in full] == [expected] * 3
    assert math.isnan(odd["f"])
    assert odd["d"] == math.inf
    assert [odd[name] for name in ("b", "i", "s", "x", "tz")] == [None] * 5


def test_a_nested_column_may_be_left_out_of_csv_but_not_be_in_it(spark: SparkSession, tmp_path: Path) -> None:
    assert rows(read(spark, write(tmp_path, "a.csv", "l\n1\n"), EVERY))[0]["deep"] is None
    with pytest.raises(InputError, match='nested column "a"'):
        read(spark, write(tmp_path, "b.csv", "l,a\n1,x\n"), EVERY)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("id,foo", 'no column "foo"'),
        ("id,_ingest_seq", "Strandline's own"),
        ("_ingest_partition,id", "Strandline's own"),
        ("name", 'required column "id"'),
        ("id,id", "occurs twice"),
        ('"id', "header cannot be read"),
    ],
)
def test_a_header_that_cannot_fit_refuses_the_file(spark: SparkSession, tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        read(spark, write(tmp_path, "a.csv", header + "\n1,2\n"), SIMPLE)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.zst"])
def test_an_empty_file_has_no_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    for content in (PACK[Path(name).suffix if Path(name).suffix in PACK else ""](b""), b""):
        (tmp_path / name).write_bytes(content)
        df = read(spark, tmp_path / name, SIMPLE)
        assert df.count() == 0
        assert df.columns == ["id", "name", LINE, REJECT, RAW]


def test_a_csv_with_a_header_only_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert read(spark, write(tmp_path, "a.csv", "id,name\n"), SIMPLE).count() == 0


def test_rows_that_are_not_rows_are_rejected_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    bad = [b"not json", b'{"id": 1, "name": "\xff\xfe"}', b"[1]", b'{"_ingest_seq": 5, "id": 1}', b'{"name": "a"}']
    content = b"\n".join([b'{"id": 1}'] * 1000 + bad + [b'{"id": 2}'] * 1000)
    df = read(spark, write(tmp_path, "a.jsonl", content), SIMPLE)
    assert df.where(f"{REJECT} is null").count() == 2000
    assert rejected(df) == [
        (1001, "not JSON: Expecting value at character 1", "not json"),
        (1002, "invalid UTF-8 at byte 20", '{"id": 1, "name": "\\xff\\xfe"}'),
        (1003, "not an object", "[1]"),
        (1004, 'column "_ingest_seq" is Strandline\'s own', '{"_ingest_seq": 5, "id": 1}'),
        (1005, 'column "id" is missing and required', '{"name": "a"}'),
    ]


def test_a_large_file_is_cut_into_parts_that_know_their_lines(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "RANGE_BYTES_MAX", 300_000)
    monkeypatch.setattr(lines, "RANGE_BYTES_MIN", 100_000)
    count = 60_000
    text = "".join(f'{{"id": {n}}}{chr(13) if n % 7 == 0 else ""}\n' if n % 11 else "\n" for n in range(1, count + 1))
    df = read(spark, write(tmp_path, "a.jsonl", text), SIMPLE)
    assert df.rdd.getNumPartitions() > 2
    found = df.agg(F.count("*"), F.count_if(F.col("id") == F.col(LINE)), F.countDistinct("id"), F.max(LINE)).first()
    expected = count - count // 11
    assert tuple(found or ()) == (expected, expected, expected, count)


def test_running_twice_gives_the_same_rows_in_the_same_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "RANGE_BYTES_MAX", 100_000)
    monkeypatch.setattr(lines, "RANGE_BYTES_MIN", 100_000)
    text = "".join(f'{{"id": {n if n % 97 else "null"}}}\n' for n in range(40_000))
    df = read(spark, write(tmp_path, "a.jsonl", text), SIMPLE)
    placed = df.select(F.spark_partition_id(), F.monotonically_increasing_id(), "id", LINE, REJECT)
    first, second = placed.collect(), placed.collect()
    assert first == second
    assert [r[LINE] for r in first] == sorted(r[LINE] for r in first)


def test_reading_starts_no_job(spark: SparkSession, tmp_path: Path) -> None:
    paths = [write(tmp_path, "a.jsonl", '{"id": "x"}\n'), write(tmp_path, "a.csv", "id\nx\n")]
    spark.sparkContext.setJobGroup("lazy", "lazy")
    try:
        for path in paths:
            read(spark, path, SIMPLE)
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("lazy")) == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["jsonl", "csv"])
@pytest.mark.parametrize("packed", [".gz", ".zst"])
def test_a_packed_file_that_is_cut_or_damaged_is_named(
    spark: SparkSession, tmp_path: Path, format: str, packed: str
) -> None:
    body = "id\n" if format == "csv" else ""
    body += "".join(f"{n * 7919 % 100_003}\n" if format == "csv" else f'{{"id": {n * 7919}}}\n' for n in range(700_000))
    whole = PACK[packed](body.encode())
    damaged = whole[: len(whole) - 2000] + bytes(b ^ 0x55 for b in whole[-2000:])
    for content in (whole[:-1], whole[: len(whole) * 3 // 4], damaged):
        path = tmp_path / f"a.{format}{packed}"
        path.write_bytes(content)
        try:
            df = read(spark, path, SIMPLE)
        except InputError as e:  # CSV looks at the first pages for its header
            assert format == "csv"
            assert path.name in e.message
        else:
            failure(lambda df=df: df.where(f"{REJECT} is null").count(), path)


def test_a_failure_while_writing_is_translated_too(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": 1}\n' * 1000)[:-9])
    df = read(spark, path, SIMPLE)
    failure(lambda: df.write.mode("overwrite").parquet(str(tmp_path / "out")), path)


def test_a_file_that_vanishes_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"id": 1}\n')
    source = identify(path)
    df = read_source(spark, source, SIMPLE).frame
    path.unlink()
    with pytest.raises((PySparkException, Py4JJavaError)) as e:
        df.count()
    told = translate(e.value, source)
    assert told is not None
    assert "a.jsonl" in told.message


def test_a_failure_that_is_not_the_files_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    df = read(spark, write(tmp_path, "a.jsonl", '{"id": 0}\n'), SIMPLE)
    with pytest.raises((PySparkException, Py4JJavaError)) as e:
        df.select(F.lit(1) / F.col("id")).collect()
    assert translate(e.value, identify(tmp_path / "a.jsonl")) is None


def test_a_line_without_end_is_an_error_and_not_an_exhausted_memory(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as f:
        f.write(b'{"id": 1}\n{"id": 2, "name": "')
        for _ in range(lines.LINE_BYTES_MAX // 2**20 + 4):
            f.write(b"x" * 2**20)
    told = failure(lambda: read(spark, path, SIMPLE).count(), path)
    assert "line 2 is longer than 64 MiB" in told.message


def test_a_row_longer_than_a_chunk_is_read_whole(spark: SparkSession, tmp_path: Path) -> None:
    long = "y" * (3 * lines.CHUNK_BYTES)
    df = read(spark, write(tmp_path, "a.jsonl", f'{{"id": 1}}\n{{"id": 2, "name": "{long}"}}\n{{"id": 3}}\n'), SIMPLE)
    assert [tuple(r) for r in df.select("id", F.length("name"), LINE).collect()] == [
        (1, None, 1),
        (2, len(long), 2),
        (3, None, 3),
    ]
    csv = read(spark, write(tmp_path, "a.csv.zst", f'id,name\n2,"{long}\n{long}"\n3,z\n'), SIMPLE)
    assert [tuple(r) for r in csv.select("id", F.length("name"), LINE).collect()] == [
        (2, 2 * len(long) + 1, 2),
        (3, 1, 4),
    ]


def test_a_long_rejected_row_is_cut_in_the_report(spark: SparkSession, tmp_path: Path) -> None:
    df = read(spark, write(tmp_path, "a.jsonl", '{"id": "' + "x" * 1_000_000 + '"}\n'), SIMPLE)
    [(_, reason, raw)] = rejected(df)
    assert len(reason) < 200
    assert len(raw) == 64 * 1024 + 1


def test_types_and_names_that_no_file_can_fill_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", "{}\n")
    for fields in (
        t.StructType([t.StructField("v", t.VariantType())]),
        t.StructType([t.StructField(RAW, t.StringType())]),
    ):
        with pytest.raises(SchemaError):
            read(spark, path, fields)


# Parquet


def test_how_far_a_job_is_is_told_by_its_tasks(spark: SparkSession, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while batch.column(0)[0].as_py() >= 2 and not go.exists():
                time.sleep(0.01)
            yield batch

    shares: queue.Queue[Callable[[], float]] = queue.Queue()

    def run() -> int:
        with counted_tasks(spark) as share:
            shares.put(share)
            return len(spark.range(0, 4, 1, 4).mapInArrow(wait, "id long").collect())

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        share = shares.get(timeout=60)
        try:
            while share() != 0.5:
                assert not running.done()
                time.sleep(0.01)
        finally:
            go.touch()
        assert running.result() == 4 and share() == 0


def parquet(folder: Path, table: pa.Table, name: str = "a.parquet") -> Path:
    pq.write_table(table, folder / name)
    return folder / name


def test_every_type_comes_through_parquet(spark: SparkSession, tmp_path: Path) -> None:
    from strandline.ingest.sources.columns import arrow_type

    row = every_row() | {"m": [("k", 1), ("", None)], "deep": [[("k", {"p": 7, "q": 2.0})], None]}
    empty = dict.fromkeys(row, None) | {"l": 0}
    odd = empty | {"f": math.nan, "d": -math.inf}
    schema = pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in EVERY])
    path = parquet(tmp_path, pa.Table.from_pylist([row, empty, odd], schema=schema), "we{ird} [na]me*.parquet")
    df = read(spark, path, EVERY)
    assert df.schema.fields[:-3] == [t.StructField(f.name, f.dataType, True) for f in EVERY]
    first, second, third = rows(moments(df))
    assert plain(first) == every_row() | {"tz": "2026-01-02 03:04:05.000006"}
    assert all(v is None for k, v in plain(second).items() if k != "l")
    assert math.isnan(third["f"])
    assert [r[LINE] for r in (first, second, third)] == [1, 2, 3]


def test_parquet_types_that_widen_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table(
        {
            "l": pa.array([1], pa.int32()),
            "d": pa.array([1.5], pa.float32()),
            "n": pa.array([Decimal("1.5")], pa.decimal128(4, 1)),
            "tz": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us")),
            "o": pa.array([{"p": 1, "q": 7}], pa.struct([("q", pa.int32()), ("p", pa.int16())])),
        }
    )
    row = rows(moments(read(spark, parquet(tmp_path, table), EVERY)))[0]
    assert row[REJECT] is None
    assert (row["l"], row["d"], row["n"], row["tz"]) == (1, 1.5, Decimal("1.50"), "2026-01-01 00:00:00")
    assert row["o"] == {"p": 1, "q": 7.0}


def test_parquet_values_that_do_not_fit_reject_their_row(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table(
        {
            "l": pa.array([1, None, 3, 4, 5, 6, 7], pa.int64()),
            "i": pa.array([1, 2, 2**40, 4, 5, 6, 7], pa.int64()),
            "n": pa.array([Decimal(x) for x in ("1.000", "2", "3", "1.005", "5", "6", "7")], pa.decimal128(20, 3)),
            "f": pa.array([0.5, 2, 3, 4, 0.1, math.nan, math.inf], pa.float64()),
            "o": pa.array(
                [{"p": 1}, None, None, None, None, {"p": None}, {"p": 2**33}], pa.struct([("p", pa.int64())])
            ),
        }
    )
    df = read(spark, parquet(tmp_path, table), EVERY)
    found = rejected(df)
    assert [(line, reason) for line, reason, _ in found] == [
        (2, 'column "l" is null and required'),
        (3, 'column "i": 1099511627776 does not fit an int'),
        (4, 'column "n": 1.005 does not fit a decimal(9,2)'),
        (5, 'column "f": 0.1 does not fit a float'),
        (6, 'column "o.p" is null and required'),
        (7, 'column "o.p": 8589934592 does not fit an int'),
    ]
    assert json.loads(found[1][2])["i"] == 2**40
    assert all(r[f.name] is None for r in rows(df)[1:] for f in EVERY)


def test_whole_numbers_that_a_float_would_round_reject_their_row(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table(
        {"l": [2**53, 2**53 + 1, 2**63 - 1, -(2**63)], "i": pa.array([2**24, 1, 2, 2**31 - 1], pa.int32())}
    )
    df = read(
        spark,
        parquet(tmp_path, table),
        t.StructType([t.StructField("l", t.DoubleType()), t.StructField("i", t.FloatType())]),
    )
    assert [(line, reason) for line, reason, _ in rejected(df)] == [
        (2, 'column "l": 9007199254740993 does not fit a double'),
        (3, 'column "l": 9223372036854775807 does not fit a double'),
        (4, 'column "i": 2147483647 does not fit a float'),
    ]


def test_invalid_utf8_inside_parquet_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    df = read(spark, parquet(tmp_path, pa.table({"id": [1, 2], "name": bad})), SIMPLE)
    assert [(line, reason) for line, reason, _ in rejected(df)] == [(2, 'column "name": invalid UTF-8')]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"id": [1], "foo": [1], "bar": [2]}), 'no column "foo", "bar"'),
        (pa.table({"name": ["x"]}), 'required column "id"'),
        (pa.table({"id": ["x"]}), 'column "id" is a string, and not a long'),
        (pa.table({"id": [1.5]}), 'column "id" is a double, and not a long'),
        (pa.table({"id": [1], "_ingest_seq": [1]}), "Strandline's own"),
        (pa.table({"id": [1], "ID": [2]}), "differ only in case"),
    ],
)
def test_a_parquet_schema_that_cannot_fit_refuses_the_file(
    spark: SparkSession, tmp_path: Path, table: pa.Table, said: str
) -> None:
    with pytest.raises(InputError) as e:
        read(spark, parquet(tmp_path, table), SIMPLE)
    assert said in e.value.message + (e.value.hint or "")


def test_nanoseconds_in_parquet_are_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    fields = t.StructType([t.StructField("at", t.TimestampType())])
    table = pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))})
    with pytest.raises(InputError) as e:
        read(spark, parquet(tmp_path, table), fields)
    assert "nanoseconds" in (e.value.hint or "")


def test_what_is_not_parquet_is_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    path = parquet(tmp_path, pa.table({"id": list(range(10_000))}))
    whole = path.read_bytes()
    for content in (b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1", whole[:-10]):
        path.write_bytes(content)
        with pytest.raises(InputError) as e:
            read(spark, path, SIMPLE)
        assert "java" not in e.value.message
        assert path.name in e.value.message


def test_damaged_pages_of_parquet_are_named(spark: SparkSession, tmp_path: Path) -> None:
    path = parquet(tmp_path, pa.table({"id": [n * n for n in range(50_000)], "name": [str(n) for n in range(50_000)]}))
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)
    path.write_bytes(data)
    failure(lambda: read(spark, path, SIMPLE).where("name is not null").count(), path)


@pytest.mark.parametrize("change", ["gone", "cut", "text", "other types"])
def test_parquet_that_changes_after_its_footer_was_read_is_named(
    spark: SparkSession, tmp_path: Path, change: str
) -> None:
    path = parquet(tmp_path, pa.table({"id": list(range(50_000)), "name": [str(n) for n in range(50_000)]}))
    source, whole = identify(path), path.read_bytes()
    df = read_source(spark, source, SIMPLE).frame
    match change:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(whole[:2000] + whole[-3000:])
        case "text":
            path.write_bytes(b"FAILED_READ_FILE" * 100)
        case _:
            parquet(tmp_path, pa.table({"id": ["a"], "name": ["b"]}))
    with pytest.raises((PySparkException, Py4JJavaError)) as e:
        df.where("name is not null").count()
    told = translate(e.value, source)
    assert told is not None and "a.parquet cannot be read as parquet" in told.message


def test_an_error_that_only_quotes_one_about_a_file_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    source = identify(write(tmp_path, "a.jsonl", '{"id": 0}\n'))
    quoting = F.raise_error(F.lit("FileNotFoundException: FAILED_READ_FILE: is not a Parquet file"))
    with pytest.raises((PySparkException, Py4JJavaError)) as e:
        spark.range(1).select(quoting).collect()
    assert translate(e.value, source) is None


# Rejects


def test_rejected_rows_come_by_line_and_no_more_than_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    text = "".join(f'{{"id": {n if n % 3 else chr(34) + "é" + chr(34)}}}\n' for n in range(1, 301))
    df = read(spark, write(tmp_path, "a.jsonl", text), SIMPLE)
    found = list(rejected_rows(df, 1000))
    assert [r["line"] for r in found] == list(range(3, 301, 3))
    assert found[0] == {"line": 3, "reason": 'column "id": "é" is not a long', "raw": '{"id": "é"}'}
    assert list(rejected_rows(df, 7)) == found[:7]
