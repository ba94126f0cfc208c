"""Rows as JSON: what `read` prints can be ingested again and gives the same values."""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import types as t

from strandline.cli.render.values import row_encoder
from strandline.ingest.sources.rows import why_not


def encoded(kind: t.DataType, value: Any) -> Any:
    encode = row_encoder(t.StructType([t.StructField("v", kind)]))
    return encode(Row(v=value))["v"]


CASES: list[tuple[t.DataType, Any, Any]] = [
    (t.BooleanType(), True, True),
    (t.LongType(), 2**63 - 1, 2**63 - 1),
    (t.FloatType(), 0.10000000149011612, 0.1),
    (t.DoubleType(), 0.1, 0.1),
    (t.DoubleType(), math.inf, "Infinity"),
    (t.DoubleType(), -math.inf, "-Infinity"),
    (t.DecimalType(20, 10), Decimal("1E-10"), "0.0000000001"),
    (t.DecimalType(10, 2), Decimal("12.50"), "12.50"),
    (t.DateType(), date(2024, 1, 31), "2024-01-31"),
    (t.TimestampNTZType(), datetime(2024, 1, 31, 10, 0, 0, 1), "2024-01-31T10:00:00.000001"),
    (t.StringType(), "grüße", "grüße"),
    (t.BinaryType(), bytearray(b"\x00\xff"), "AP8="),
    (t.ArrayType(t.DoubleType()), [1.0, None, math.nan], [1.0, None, "NaN"]),
    (t.MapType(t.LongType(), t.DecimalType(4, 1)), {1: Decimal("2.5"), 2: None}, {"1": "2.5", "2": None}),
    (t.MapType(t.BooleanType(), t.LongType()), {True: 1}, {"true": 1}),
    (t.MapType(t.DateType(), t.LongType()), {date(2024, 1, 31): 1}, {"2024-01-31": 1}),
    (t.StructType([t.StructField("b", t.BinaryType())]), Row(b=b"a"), {"b": "YQ=="}),
    (t.StringType(), None, None),
]


@pytest.mark.parametrize(("kind", "value", "written"), CASES)
def test_every_type_is_written_so_that_it_can_be_read_in_again(kind: t.DataType, value: Any, written: Any) -> None:
    assert encoded(kind, value) == written
    line = json.dumps({"v": encoded(kind, value)}).encode()
    assert why_not(line, t.StructType([t.StructField("v", kind)])) is None


def test_nan_is_text_because_json_has_no_number_for_it() -> None:
    assert encoded(t.DoubleType(), math.nan) == "NaN"
    json.dumps({"v": encoded(t.FloatType(), math.nan)}, allow_nan=False)


def test_an_instant_is_written_in_utc_and_a_plain_timestamp_without_a_zone() -> None:
    local = datetime.fromtimestamp(1_706_695_200)  # as Spark gives it: in the zone of this process, without saying so
    assert encoded(t.TimestampType(), local) == "2024-01-31T10:00:00Z"
