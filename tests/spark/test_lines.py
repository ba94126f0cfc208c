"""Values of every type, over the whole range of the type, as lines of text: read back by readers that are not ours.

Plain and nested. As Spark hands them over, a `uuid` is text and a `fixed` is bytes. There is no `time` and no timestamp
in nanoseconds: Spark cannot read them from Iceberg, and `dataset create` refuses them.
"""

from __future__ import annotations

import base64
import csv
import json
import random
import re
import struct
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import Address, ChunkRows, Landed, Refused, SinkContext
from strandline.deliver.sinks.blobs.encode import ObjectFormat, encode
from strandline.deliver.sinks.postgres.sink import KIND, PostgresSink
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.spark.row_text import line

ROWS = 200
DAY = 86_400_000_000
PLAIN = {
    "flag": "boolean",
    "small": "int",
    "large": "long",
    "single": "float",
    "number": "double",
    "money": "decimal(38,10)",
    "day": "date",
    "instant": "timestamptz",
    "local": "timestamp",
    "word": "string",
    "bytes": "binary",
    "id": "uuid",
    "fix": "fixed[4]",
}
ALL_IN_ONE = f"struct<{','.join(f'{name}:{kind}' for name, kind in PLAIN.items())}>"
NESTED = {
    "all": ALL_IN_ONE,
    "list": "list<timestamp>",
    "map": "map<string,decimal(38,10)>",
    "deep": "map<date,list<struct<at:timestamptz,many:list<double>,bytes:binary,id:uuid,more:map<string,date>>>>",
}
COLUMNS = (
    Column("_ingest_seq", Primitive("long")),
    *parse_columns([{"name": n, "type": k} for n, k in (PLAIN | NESTED).items()]),
)
NAMES = tuple(c.name for c in COLUMNS)
PG_FIRST_DAY = -2_440_588
"""4714-11-24 BC, the first day that PostgreSQL knows."""
PG_LAST_DAY = 2_145_042_905
"""In 5874897. All our timestamps end before its own do."""


def days_of(text: str) -> int:
    """Of an ISO 8601 date with a year of any size and sign, in the proleptic Gregorian calendar, since 1970."""
    found = re.fullmatch(r"([+-]?\d{4,})-(\d\d)-(\d\d)", text)
    assert found is not None, text
    year, month, day = map(int, found.groups())
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def micros_of(text: str) -> int:
    day, _, time = text.removesuffix("Z").partition("T")
    hour, minute, second, fraction = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?", time).groups()  # type: ignore[union-attr]
    seconds = (int(hour) * 60 + int(minute)) * 60 + int(second)
    return days_of(day) * DAY + seconds * 1_000_000 + int((fraction or "").ljust(6, "0"))


def anywhere(rng: random.Random, bits: int) -> int:
    """As likely small as large, and the ends of the range among them."""
    top = 1 << (bits - 1)
    size = 1 << rng.randrange(bits)
    return rng.choice([rng.randrange(-top, top), rng.randrange(-min(size, top), min(size, top)), -top, top - 1])


WORDS = [
    "",
    " ",
    '"',
    '""',
    ",",
    "a,b",
    "line\nend",
    "\r",
    "\r\n",
    "\\",
    "\\N",
    "\\.",
    "\t",
    "'",
    "ü 漢 🌊",
    "NULL",
    " x ",
    "\u2028",
]


def a_value(rng: random.Random, kind: ColumnType) -> Any:
    """Dates and times are the integers that Iceberg keeps."""
    if rng.random() < 0.05:
        return None
    match kind:
        case Struct(fields):
            return tuple(a_value(rng, f.type) for f in fields)
        case ListOf(of):
            return [a_value(rng, of) for _ in range(rng.randrange(3))]
        case MapOf(key, of):
            keys = (a_value(rng, key) for _ in range(rng.randrange(3)))
            return {k: a_value(rng, of) for k in keys if k is not None}
        case Primitive(name):
            return a_plain_value(rng, name)


def a_plain_value(rng: random.Random, kind: str) -> Any:
    day = rng.randrange(-4800, 3000) * 365 + rng.randrange(365)  # as often around the year 1 as anywhere
    match kind:
        case "boolean":
            return rng.random() < 0.5
        case "int":
            return anywhere(rng, 32)
        case "long":
            return anywhere(rng, 64)
        case "float":
            return rng.choice([-0.0, struct.unpack("<f", struct.pack("<I", rng.getrandbits(32)))[0]])
        case "double":
            return rng.choice([-0.0, struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))[0]])
        case "date":
            return rng.choice([day, anywhere(rng, 32)])
        case "timestamp" | "timestamptz":
            return rng.choice([day * DAY + rng.randrange(DAY), day * DAY - 1, anywhere(rng, 64)])
        case "string":
            return rng.choice(WORDS) * rng.randrange(1, 3)
        case "uuid":
            return str(uuid.UUID(int=rng.getrandbits(128)))
        case "binary":
            return rng.randbytes(rng.randrange(5))
        case "fixed[4]":
            return rng.randbytes(4)
    return Decimal(f"{anywhere(rng, 126)}E-10")


def raw_type(kind: ColumnType) -> str:
    """What Spark is given: integers for dates and times, of which Python has fewer years."""
    match kind:
        case Struct(fields):
            return f"struct<{','.join(f'{f.name}:{raw_type(f.type)}' for f in fields)}>"
        case ListOf(of):
            return f"array<{raw_type(of)}>"
        case MapOf(key, of):
            return f"map<{raw_type(key)},{raw_type(of)}>"
        case Primitive(name):
            names = {"date": "int", "timestamp": "long", "timestamptz": "long", "uuid": "string", "fixed[4]": "binary"}
            return names.get(name, name)


FROM_INTEGERS = {
    "date": "date_from_unix_date({0})",
    "timestamptz": "timestamp_micros({0})",
    "timestamp": "CAST(timestamp_micros({0}) AS timestamp_ntz)",
}
TO_INTEGERS = {
    "date": "unix_date({0})",
    "timestamptz": "unix_micros({0})",
    "timestamp": "unix_micros(CAST({0} AS timestamp))",
}


def converted(value: str, kind: ColumnType, by: dict[str, str], depth: int = 0) -> str:
    """In SQL: dates and times from integers, or to them, wherever they are inside the value."""
    inner = f"x{depth}"
    match kind:
        case Struct(fields):
            parts = ", ".join(f"'{f.name}', {converted(f'{value}.{f.name}', f.type, by, depth)}" for f in fields)
            return f"IF({value} IS NULL, NULL, named_struct({parts}))"
        case ListOf(of):
            return f"transform({value}, {inner} -> {converted(inner, of, by, depth + 1)})"
        case MapOf(key, of):
            keys = f"transform_keys({value}, ({inner}, y{depth}) -> {converted(inner, key, by, depth + 1)})"
            return f"transform_values({keys}, (y{depth}, {inner}) -> {converted(inner, of, by, depth + 1)})"
        case Primitive(name):
            return by.get(name, "{0}").format(value)


@pytest.fixture(scope="module")
def values() -> list[tuple[Any, ...]]:
    rng = random.Random(13)
    return [(n, *(a_value(rng, c.type) for c in COLUMNS[1:])) for n in range(1, ROWS + 1)]


@pytest.fixture(scope="module")
def frame(spark: SparkSession, values: list[tuple[Any, ...]]) -> DataFrame:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    raw = spark.createDataFrame(values, ", ".join(f"{c.name} {raw_type(c.type)}" for c in COLUMNS))
    return raw.selectExpr(*(f"{converted(c.name, c.type, FROM_INTEGERS)} AS {c.name}" for c in COLUMNS)).cache()


def lines_of(df: DataFrame, form: str) -> list[str]:
    return [r[1] for r in sorted(df.select("_ingest_seq", line(form, df.schema.fields).alias("line")).collect())]


def same_float(text: str | float, wanted: float, kind: str, *, signed_zero: bool = True) -> bool:
    found = float(text)
    if found == wanted == 0 and not signed_zero:
        return True
    return struct.pack(kind, found) == struct.pack(kind, wanted) or (found != found and wanted != wanted)


def agrees(found: Any, wanted: Any, kind: ColumnType, *, signed_zero: bool = True) -> bool:
    """Whether a value of JSON, with its fractions as text, is this one."""
    if found is None or wanted is None:
        return found is None and wanted is None
    inside = lambda f, w, k: agrees(f, w, k, signed_zero=signed_zero)  # noqa: E731
    match kind:
        case Struct(fields):
            return set(found) == {f.name for f in fields} and all(
                inside(found[f.name], w, f.type) for f, w in zip(fields, wanted, strict=True)
            )
        case ListOf(of):
            return len(found) == len(wanted) and all(inside(f, w, of) for f, w in zip(found, wanted, strict=True))
        case MapOf(Primitive(key), of):
            read = {days_of(k) if key == "date" else k: v for k, v in found.items()}
            return set(read) == set(wanted) and all(inside(read[k], w, of) for k, w in wanted.items())
        case Primitive("float" | "double" as name):
            return same_float(found, wanted, "<f" if name == "float" else "<d", signed_zero=signed_zero)
        case Primitive("date"):
            return days_of(found) == wanted
        case Primitive("timestamp" | "timestamptz" as name):
            return micros_of(found) == wanted and found.endswith("Z") == (name == "timestamptz")
        case Primitive("binary" | "fixed[4]"):
            return base64.b64decode(found) == wanted
        case Primitive("boolean" | "int" | "long" | "string" | "uuid"):
            return type(found) is type(wanted) and bool(found == wanted)
    return isinstance(found, str) and Decimal(found) == wanted


def read_json(text: str) -> Any:
    return json.loads(text, parse_float=str)


def check(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    for column, value, expected in zip(COLUMNS, found, wanted, strict=True):
        assert agrees(value, expected, column.type), (column.name, value, expected)


def equal(found: Any, wanted: Any, kind: ColumnType) -> bool:
    """To the last bit."""
    if found is None or wanted is None:
        return found is None and wanted is None
    match kind:
        case Struct(fields):
            assert isinstance(found, Row)
            return all(equal(f, w, c.type) for c, f, w in zip(fields, found, wanted, strict=True))
        case ListOf(of):
            return len(found) == len(wanted) and all(equal(f, w, of) for f, w in zip(found, wanted, strict=True))
        case MapOf(_, of):
            return set(found) == set(wanted) and all(equal(found[k], w, of) for k, w in wanted.items())
        case Primitive("float" | "double" as name):
            return same_float(found, wanted, "<f" if name == "float" else "<d")
    return bool(found == wanted)


def test_parquet_is_read_by_spark_as_it_was_written(
    spark: SparkSession, frame: DataFrame, values: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """What pyarrow wrote, parquet-java reads."""
    path = tmp_path / "rows.parquet"
    with path.open("wb") as file:
        encode(frame.toArrow(), ObjectFormat("parquet", "zstd"), NAMES, {}, file)
    read = spark.read.parquet(str(path))
    plain = read.selectExpr(*(f"{converted(c.name, c.type, TO_INTEGERS)} AS {c.name}" for c in COLUMNS))
    for row, wanted in zip(sorted(plain.collect(), key=lambda r: r[0]), values, strict=True):
        for column, value, expected in zip(COLUMNS, row, wanted, strict=True):
            assert equal(value, expected, column.type), (column.name, value, expected)


def test_json_lines_hold_every_value(frame: DataFrame, values: list[tuple[Any, ...]]) -> None:
    for text, wanted in zip(lines_of(frame, "jsonl"), values, strict=True):
        row = read_json(text)
        assert list(row) == list(NAMES)
        check(tuple(row.values()), wanted)


def from_csv(text: str, kind: ColumnType, wanted: Any) -> Any:
    if text == "" and (wanted is None or wanted == b""):  # the docs say that CSV cannot tell these apart
        return None if wanted is None else ""
    is_json = kind in (Primitive("boolean"), Primitive("int"), Primitive("long")) or not isinstance(kind, Primitive)
    return read_json(text) if is_json else text


def test_csv_holds_every_value(frame: DataFrame, values: list[tuple[Any, ...]], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("".join(f"{r}\n" for r in [",".join(NAMES), *lines_of(frame, "csv")]).encode())
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == list(NAMES)
    for row, wanted in zip(rows, values, strict=True):
        check(tuple(from_csv(v, c.type, w) for v, c, w in zip(row, COLUMNS, wanted, strict=True)), wanted)


def test_a_csv_of_one_column_has_a_record_for_every_row(frame: DataFrame, tmp_path: Path) -> None:
    """As Python's csv and pandas count them."""
    import pandas as pd

    texts = [line("csv", [field]).alias(field.name) for field in frame.schema.fields]
    rows = frame.where("_ingest_seq <= 60").select(*texts).collect()
    for column in NAMES[1:]:
        path = tmp_path / f"{column}.csv"
        path.write_bytes("".join(f"{text}\n" for text in [column, *(r[column] for r in rows)]).encode())
        with path.open(encoding="utf-8", newline="") as file:
            assert sum(1 for row in csv.reader(file) if row) == 61
        assert len(pd.read_csv(path, dtype=str)) == 60


@pytest.fixture
def table(postgres_database: str) -> Iterator[tuple[PostgresSink, psycopg.Connection]]:
    options = {"dsn": postgres_database, "table": "events", "create": "true"}
    sink = KIND.open(SinkContext(Path(), "default.events", 1, options))
    assert isinstance(sink, PostgresSink)
    sink.prepare(COLUMNS)
    with psycopg.connect(postgres_database) as person:
        yield sink, person
    sink.close()


def in_range(row: tuple[Any, ...]) -> bool:
    day, *micros = row[7:10]
    days = [m // DAY for m in micros if m is not None] + ([] if day is None else [day])
    return all(PG_FIRST_DAY <= d <= PG_LAST_DAY for d in days)


def test_postgres_holds_every_value_that_it_knows_and_refuses_the_others(
    frame: DataFrame, values: list[tuple[Any, ...]], table: tuple[PostgresSink, psycopg.Connection]
) -> None:
    sink, person = table
    lines = lines_of(frame, "copy")
    wanted = [v for v in values if in_range(v)]
    assert len(wanted) > ROWS / 3 and sum(v[7] is not None and v[7] < -719_528 for v in wanted) > 20
    sender = sink.sender("t1")
    address = Address("lake-1", "instance-1", 1, "default.events", "")
    for row, text in zip(values, lines, strict=True):
        n = Seq(row[0])
        sent = pa.table({"_ingest_seq": pa.array([n], pa.int64()), "line": [text]})
        outcome = sender.send(ChunkRows(address, SeqRange(n, n), sent))
        assert isinstance(outcome, Landed if in_range(row) else Refused), (row, text, outcome)
    sender.close()
    # In two parts: of a number of 19 digits `extract` rounds the last ones.
    epoch = "extract(epoch FROM date_trunc('second', {0}))::bigint::numeric * 1000000"
    epoch += " + extract(microseconds FROM {0})::bigint % 1000000"
    asked = {n: f'"{n}"::text' for n in ("single", "number", "id", *NESTED)}
    asked |= {n: epoch.format(n) for n in ("instant", "local")} | {"day": "day - date '1970-01-01'"}
    chosen = ", ".join(asked.get(n, n) for n in NAMES)
    found = person.execute(f"SELECT {chosen} FROM events ORDER BY 1".encode()).fetchall()
    for row, want in zip(found, wanted, strict=True):
        for column, value, expected in zip(COLUMNS, row, want, strict=True):
            if column.name in NESTED:  # numbers of jsonb are decimal: they have no negative zero
                read = None if value is None else read_json(value)
                assert agrees(read, expected, column.type, signed_zero=False), (column.name, value, expected)
            else:
                assert equal(value, expected, column.type), (column.name, value, expected)
