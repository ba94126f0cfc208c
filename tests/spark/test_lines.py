"""Values of every type, over the whole range of the type, as lines of text: read back by readers that are not ours."""

from __future__ import annotations

import base64
import csv
import json
import random
import re
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.deliver.lines import csv_header, line
from strandline.deliver.sink import Address, Landed, Parcel, Refused, SinkContext
from strandline.deliver.sinks.encode import Format, encode
from strandline.deliver.sinks.postgres import KIND, PostgresSink
from strandline.tables.schema import Column, Primitive
from strandline.types import Seq, SeqRange

ROWS = 300
DAY = 86_400_000_000
NAMES = (
    "_ingest_seq",
    "flag",
    "small",
    "large",
    "single",
    "number",
    "money",
    "day",
    "instant",
    "local",
    "word",
    "bytes",
)
KINDS = ("long", "boolean", "int", "long", "float", "double", "decimal(38,10)", "date", "timestamptz", "timestamp",
         "string", "binary")  # fmt: skip
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


def one_row(rng: random.Random, number: int) -> tuple[Any, ...]:
    micros = [anywhere(rng, 64) for _ in range(2)]
    day = anywhere(rng, 32)
    years = rng.randrange(-4800, 3000) * 365  # as often around the year 1 as anywhere
    if number % 2:
        day = years + rng.randrange(365)
        micros = [day * DAY + rng.randrange(DAY), day * DAY - 1]
    single = struct.unpack("<f", struct.pack("<I", rng.getrandbits(32)))[0]
    double = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))[0]
    money = Decimal(f"{anywhere(rng, 126)}E-10")
    values = (rng.random() < 0.5, anywhere(rng, 32), anywhere(rng, 64), single, double, money, day, *micros,
              rng.choice(WORDS) * rng.randrange(1, 3), rng.randbytes(rng.randrange(5)))  # fmt: skip
    return (number, *(None if rng.random() < 0.05 else v for v in values))


@pytest.fixture(scope="module")
def values() -> list[tuple[Any, ...]]:
    rng = random.Random(13)
    return [one_row(rng, n) for n in range(1, ROWS + 1)]


@pytest.fixture(scope="module")
def frame(spark: SparkSession, values: list[tuple[Any, ...]]) -> DataFrame:
    raw = (
        "long",
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "decimal(38,10)",
        "int",
        "long",
        "long",
        "string",
        "binary",
    )
    schema = ", ".join(f"{n} {k}" for n, k in zip(NAMES, raw, strict=True))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark.createDataFrame(values, schema).selectExpr(
        *NAMES[:7], "date_from_unix_date(day) AS day", "timestamp_micros(instant) AS instant",
        "CAST(timestamp_micros(local) AS timestamp_ntz) AS local", "word", "bytes",
    )  # fmt: skip


def lines_of(df: DataFrame, form: str) -> list[str]:
    return [r[1] for r in sorted(df.select("_ingest_seq", line(form, df.schema.fields).alias("line")).collect())]


def same_float(text: str | float, wanted: float, kind: str) -> bool:
    found = float(text)
    return struct.pack(kind, found) == struct.pack(kind, wanted) or (found != found and wanted != wanted)


def check_texts(found: Sequence[str | None], wanted: Sequence[Any], *, spelled: Sequence[Any]) -> None:
    """`spelled` are the values as this form has them, where they need no reading."""
    for name, text, value, plain in zip(NAMES, found, wanted, spelled, strict=True):
        if value is None:
            assert text is None, (name, text)
            continue
        assert text is not None, (name, value)
        match name:
            case "single" | "number":
                assert same_float(text, value, "<f" if name == "single" else "<d"), (text, value)
            case "money":
                assert Decimal(text) == value
            case "day":
                assert days_of(text) == value, (text, value)
            case "instant" | "local":
                assert micros_of(text) == value and text.endswith("Z") == (name == "instant"), (text, value)
            case "bytes":
                assert base64.b64decode(text) == value
            case _:
                assert text == plain, name


def test_parquet_is_read_by_spark_as_it_was_written(
    spark: SparkSession, frame: DataFrame, values: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """What pyarrow wrote, parquet-java reads."""
    path = tmp_path / "rows.parquet"
    with path.open("wb") as file:
        encode(frame.toArrow(), Format("parquet", "zstd"), NAMES, {}, file)
    plain = spark.read.parquet(str(path)).selectExpr(
        *NAMES[:7], "unix_date(day)", "unix_micros(instant)", "unix_micros(CAST(local AS timestamp))", "word", "bytes"
    )
    for row, wanted in zip(sorted(plain.collect()), values, strict=True):
        for name, value, expected in zip(NAMES, row, wanted, strict=True):
            if name in ("single", "number") and expected is not None:
                assert same_float(value, expected, "<f" if name == "single" else "<d"), (value, expected)
            else:
                assert value == expected, (name, value, expected)


def test_json_lines_hold_every_value(frame: DataFrame, values: list[tuple[Any, ...]]) -> None:
    for text, wanted in zip(lines_of(frame, "jsonl"), values, strict=True):
        row = json.loads(text, parse_float=str)
        assert list(row) == list(NAMES)
        texts = [str(v) if n in ("single", "number") and v is not None else v for n, v in row.items()]
        check_texts(texts, wanted, spelled=wanted)


def test_csv_holds_every_value(frame: DataFrame, values: list[tuple[Any, ...]], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("".join(f"{r}\n" for r in [csv_header(NAMES), *lines_of(frame, "csv")]).encode())
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == list(NAMES)
    for row, wanted in zip(rows, values, strict=True):
        plain = [str(v).lower() if isinstance(v, bool) else str(v) for v in wanted]
        texts = [None if v == "" and w is None else v for v, w in zip(row, wanted, strict=True)]
        check_texts(texts, wanted, spelled=plain)


@pytest.mark.parametrize("column", NAMES[1:])
def test_a_csv_of_one_column_has_a_record_for_every_row(
    frame: DataFrame, values: list[tuple[Any, ...]], tmp_path: Path, column: str
) -> None:
    """As Python's csv and pandas count them."""
    import pandas as pd

    some = frame.where("_ingest_seq <= 60")
    texts = [line("csv", some.select(column).schema.fields).alias("line")]
    lines = [r[1] for r in sorted(some.select("_ingest_seq", *texts).collect())]
    path = tmp_path / "one.csv"
    path.write_bytes("".join(f"{r}\n" for r in [column, *lines]).encode())
    with path.open(encoding="utf-8", newline="") as file:
        assert sum(1 for row in csv.reader(file) if row) == 61
    assert len(pd.read_csv(path, dtype=str)) == 60


@pytest.fixture
def table(postgres_database: str) -> Iterator[tuple[PostgresSink, psycopg.Connection]]:
    options = {"dsn": postgres_database, "table": "events", "create": "true"}
    sink = KIND.open(SinkContext(Path(), "default.events", 1, options))
    assert isinstance(sink, PostgresSink)
    sink.prepare([Column(n, Primitive(k)) for n, k in zip(NAMES, KINDS, strict=True)])
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
        outcome = sender.send(Parcel(address, SeqRange(n, n), sent))
        assert isinstance(outcome, Landed if in_range(row) else Refused), (row, text, outcome)
    sender.close()
    # In two parts: of a number of 19 digits `extract` rounds the last ones.
    epoch = "extract(epoch FROM date_trunc('second', {0}))::bigint::numeric * 1000000"
    epoch += " + extract(microseconds FROM {0})::bigint % 1000000"
    asked = ["_ingest_seq", "flag", "small", "large", "single::text", "number::text", "money",
             "day - date '1970-01-01'", epoch.format("instant"), epoch.format("local"), "word", "bytes"]  # fmt: skip
    found = person.execute(f"SELECT {', '.join(asked)} FROM events ORDER BY 1".encode()).fetchall()
    for row, want in zip(found, wanted, strict=True):
        for name, value, expected in zip(NAMES, row, want, strict=True):
            if name in ("single", "number") and expected is not None:
                assert same_float(value, expected, "<f" if name == "single" else "<d"), (value, expected)
            else:
                assert value == expected, (name, value, expected)
