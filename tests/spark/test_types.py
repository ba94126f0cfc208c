"""All of Iceberg's types, through append and back, to the last bit; and the digest, which tells all of them apart."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core.errors import BatchConflict, FailedError
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest import digest, stamp
from strandline.lake import Lake
from tests.conftest import MakeHome
from tests.spark.lakes import count, new_lake, open_blocks, sql


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("types"), make_home) as lake:
        yield lake


@pytest.fixture
def far_from_utc() -> Iterator[None]:
    """A process whose own zone is neither UTC nor a whole hour away from it."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/St_Johns"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


UUID = "12345678-1234-1234-1234-123456789abc"
BIG = Decimal("9999999999999999999999999999.9999999999")
INSTANT = datetime(2024, 11, 3, 5, 30, 0, 123456, UTC)
"""An hour that happens twice in North America: a naive local time could not say which one it was."""
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)

PLAIN: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [0, 2**31 - 1, -(2**31)],
    "long": [0, 2**63 - 1, -(2**63)],
    "float": [0.0, -0.0, math.nan, math.inf, -math.inf, 1.401298464324817e-45, 3.4028234663852886e38],
    "double": [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308],
    "decimal(38,10)": [BIG, BIG.copy_negate(), Decimal("0E-10"), Decimal("0.0000000001")],
    "decimal(9,0)": [Decimal(999999999), Decimal(-999999999)],
    "decimal(38,38)": [Decimal("0." + "9" * 38)],
    "date": [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1), datetime(2024, 3, 10, 2, 30, 0, 1), LAST.replace(tzinfo=None)],
    "timestamptz": [FIRST, INSTANT, LAST],
    "string": ["", " ", "\0", "ü\u0308𝄞", "x" * 70_000, "'\"`\\\n\t"],
    "uuid": [UUID, "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "fixed[4]": [b"\0\0\0\0", b"\xff\xfe\0\x01"],
    "binary": [b"", b"\xff", bytes(range(256))],
}
NESTED: dict[str, list[Any]] = {
    "list<long>": [[], [None], [1, None], [None, 1], [2**63 - 1]],
    "list<list<string>>": [[], [[]], [None], [[None]], [[], None], [["", None], []]],
    "map<string,double>": [{}, {"": None}, {"a": math.nan, "b": -0.0}],
    "map<string,map<string,list<int>>>": [{}, {"a": None}, {"a": {}}, {"a": {"b": None}}, {"a": {"b": [None, 1]}}],
    "map<struct<k:int,d:date>,string>": [{}, {Row(k=1, d=date(2024, 1, 1)): "x", Row(k=1, d=None): None}],
    "struct<a:int,b:struct<c:timestamptz,d:list<decimal(5,2)>>>": [
        Row(a=None, b=None),
        Row(a=1, b=Row(c=None, d=None)),
        Row(a=None, b=Row(c=INSTANT, d=[])),
        Row(a=2, b=Row(c=LAST, d=[Decimal("1.50"), None])),
    ],
    "list<struct<m:map<timestamptz,timestamptz>,f:fixed[2],u:uuid>>": [
        [],
        [None],
        [Row(m=None, f=None, u=None)],
        [Row(m={}, f=b"\0\xff", u=UUID), Row(m={INSTANT: None, LAST: FIRST}, f=None, u=None)],
    ],
}
EVERY = PLAIN | NESTED


def _same(value: Any) -> Any:
    """Comparable to the last bit: NaN equals NaN, 0.0 is not -0.0, and instants say their zone."""
    match value:
        case Row():
            return ("row", [_same(v) for v in value])
        case dict():
            return ("map", sorted((repr(_same(k)), repr(_same(v))) for k, v in value.items()))
        case list():
            return [_same(v) for v in value]
        case bytearray():
            return bytes(value)
        case Decimal():
            return ("decimal", Fraction(value))
        case float():
            return repr(value)
        case _:
            return value


def test_every_type_comes_back_as_it_went_in_whatever_the_zone_of_the_process(lake: Lake, far_from_utc: None) -> None:
    lake.create_dataset(
        "every",
        parse_columns([{"name": "n", "type": "int"}, *({"name": f"c{i}", "type": t} for i, t in enumerate(EVERY))]),
    )
    fields = lake.spark.table("lake.default.every").schema.fields[1:]
    rows: list[tuple[Any, ...]] = []
    for k in range(max(map(len, EVERY.values())) + 1):
        # One row more than there are values: all null.
        rows.append((k, *(v[k] if k < len(v) else None for v in EVERY.values())))
    df = lake.spark.createDataFrame(rows, T.StructType([T.StructField(f.name, f.dataType) for f in fields]))
    assert lake.append("every", df, batch_id="all").row_count == len(rows)
    got = [row for row, _ in lake.read_since("every")]
    assert len(got) == len(rows)
    for kind, at in zip(EVERY, range(1, len(EVERY) + 1), strict=True):
        assert [_same(r[at]) for r in got] == [_same(r[at]) for r in rows], kind
    assert lake.append("every", df.repartition(3), batch_id="all").duplicate, "and the digest finds them the same"


def test_times_are_utc_in_spark_too_whatever_the_zone_of_the_process(lake: Lake, far_from_utc: None) -> None:
    lake.create_dataset(
        "utc", parse_columns([{"name": "at", "type": "timestamptz"}, {"name": "wall", "type": "timestamp"}])
    )
    lake.append(
        "utc", lake.spark.sql("SELECT TIMESTAMP'2024-07-01 12:00:00' AS at, TIMESTAMP_NTZ'2024-07-01 12:00:00' AS wall")
    )
    ((row, _),) = lake.read_since("utc")
    assert row.at == datetime(2024, 7, 1, 12, tzinfo=UTC) and row.at.tzinfo is UTC
    assert row.wall == datetime(2024, 7, 1, 12)
    assert sql(lake, "SELECT unix_timestamp(at) FROM lake.default.utc")[0][0] == 1719835200
    assert lake.spark._jvm.java.util.TimeZone.getDefault().getID() == "UTC"


@pytest.mark.parametrize(
    ("kind", "value"),
    [("uuid", "'no uuid'"), ("fixed[4]", "X'010203'"), ("int", "2147483648L"), ("decimal(3,1)", "1000BD")],
)
def test_a_value_that_its_column_cannot_hold_fails_the_batch_and_leaves_nothing(
    lake: Lake, kind: str, value: str
) -> None:
    name = "misfit_" + "".join(c for c in kind if c.isalnum())
    lake.create_dataset(name, parse_columns([{"name": "x", "type": kind}]))
    with pytest.raises(FailedError):
        lake.append(name, lake.spark.sql(f"SELECT {value} AS x"), batch_id="b")
    assert count(lake, name) == 0 and open_blocks(lake, name) == []
    assert [r for r in sql(lake, f"SELECT name FROM lake.default.{name}.refs") if r[0] != "main"] == []


# ---- the digest ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark_types(lake: Lake) -> dict[str, T.DataType]:
    """The type that Spark reads each of Iceberg's types as."""
    lake.create_dataset("kinds", parse_columns([{"name": f"c{i}", "type": t} for i, t in enumerate(EVERY)]))
    schema = lake.spark.table("lake.default.kinds").schema
    return {kind: schema[f"c{i}"].dataType for i, kind in enumerate(EVERY)}


@pytest.mark.parametrize("kind", [k for k in EVERY if k != "boolean"])
def test_the_digest_tells_every_two_values_of_a_type_apart(
    lake: Lake, spark_types: dict[str, T.DataType], kind: str
) -> None:
    dtype = spark_types[kind]
    given = [None, *EVERY[kind]]
    df = lake.spark.createDataFrame([(v,) for v in given], T.StructType([T.StructField("x", dtype)]))
    hashes = df.select(F.xxhash64(digest.hashable(F.col("x"), dtype))).distinct().count()
    # Spark's hash takes 0.0 and -0.0 for the same.
    assert hashes == len(given) - (kind in ("float", "double"))


def test_the_digest_of_a_batch_stays_the_one_that_ledgers_have(lake: Lake, spark_types: dict[str, T.DataType]) -> None:
    """It was first taken of a struct for each value; the parts of the struct one by one give the same."""
    fields = [T.StructField(f"c'{i} ", dtype) for i, dtype in enumerate(spark_types.values())]
    columns = [[None, *values] for values in EVERY.values()]
    rows = [[column[n % len(column)] for column in columns] for n in range(max(map(len, columns)) + 1)]
    df = lake.spark.createDataFrame(rows, T.StructType(fields))
    structs = [
        F.when(value.isNotNull(), F.struct(F.lit(f.name), digest.hashable(value, f.dataType)))
        for f in sorted(fields, key=lambda f: f.name)
        for value in [F.col(f"`{f.name}`")]
    ]
    low = F.sum(F.xxhash64(F.lit(1), *structs).bitwiseAND(F.lit(0xFFFFFFFF)))
    first = digest.digest_measures(fields)[0]
    [[expected, found]] = df.agg(low, first).collect()
    assert found == expected


def _digest(lake: Lake, text: str) -> str | None:
    df = lake.spark.sql(text)
    return stamp.count(stamp.pin(lake.spark, df), df.columns, digest=True).digest


def test_the_digest_does_not_depend_on_order_cut_or_the_order_of_a_map(lake: Lake) -> None:
    one = "SELECT id AS a, map('x', id, 'y', null) AS m FROM range(0, 50, 1, 1)"
    other = "SELECT /*+ REPARTITION(7) */ map('y', null, 'x', id) AS m, id AS a FROM range(0, 50, 1, 3) ORDER BY -id"
    assert _digest(lake, one) == _digest(lake, other)
    assert _digest(lake, one) != _digest(lake, one.replace("50", "49"))


def test_the_digest_tells_columns_apart_and_takes_a_missing_one_for_null(lake: Lake) -> None:
    assert _digest(lake, "SELECT 1 AS a") == _digest(lake, "SELECT 1 AS a, null AS b"), "the table holds the same"
    texts = [
        "SELECT 1 AS a",
        "SELECT 1 AS b",
        "SELECT 1 AS a, 1 AS b",
        "SELECT 2 AS a, 1 AS b",
    ]
    pairs = ["SELECT 1 AS a UNION ALL SELECT 1 AS a", "SELECT 2 AS a UNION ALL SELECT 0 AS a"]
    found = [_digest(lake, text) for text in (*texts, *pairs)]
    assert len(set(found)) == len(found)


def test_the_same_id_with_the_value_in_another_column_is_a_conflict(lake: Lake) -> None:
    lake.create_dataset("two", parse_columns([{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]))
    lake.append("two", lake.spark.sql("SELECT 1 AS a"), batch_id="x")
    with pytest.raises(BatchConflict):
        lake.append("two", lake.spark.sql("SELECT 1 AS b"), batch_id="x")
