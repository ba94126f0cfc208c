"""The row parser says why a row does not fit. The fast way takes no row that it refuses, and reads no other value."""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from strandline.core.errors import InputError
from strandline.ingest.sources import delimited, jsonl, lines
from strandline.ingest.sources.blocks import LINE, RAW, REJECT, ColumnsReader, to_batches
from strandline.ingest.sources.columns import Unfit, arrow_type
from strandline.ingest.sources.identify import identify
from strandline.ingest.sources.lines import ByteRange, LineBlock, split_lines
from strandline.ingest.sources.positions import report_to, watch_positions
from strandline.ingest.sources.read import absent_columns
from strandline.ingest.sources.rows import csv_cells, csv_row, json_row
from strandline.ingest.sources.values import Misfit
from tests.campaign import scaled

SCALARS: dict[str, t.DataType] = {
    "b": t.BooleanType(),
    "i": t.IntegerType(),
    "l": t.LongType(),
    "f": t.FloatType(),
    "d": t.DoubleType(),
    "n": t.DecimalType(9, 2),
    "big": t.DecimalType(38, 10),
    "s": t.StringType(),
    "x": t.BinaryType(),
    "day": t.DateType(),
    "ts": t.TimestampNTZType(),
    "tz": t.TimestampType(),
}
FLAT = t.StructType([t.StructField(name, dt) for name, dt in SCALARS.items()])
INNER = t.StructType(
    [t.StructField("p", t.IntegerType(), False), t.StructField("q", t.ArrayType(t.StringType(), False))]
)
NESTED = t.StructType(
    [
        t.StructField("id", t.LongType(), False),
        t.StructField("o", INNER),
        t.StructField("a", t.ArrayType(INNER)),
        t.StructField("m", t.MapType(t.StringType(), t.LongType())),
        t.StructField("k", t.MapType(t.IntegerType(), INNER, False)),
    ]
)


def why_not(line: bytes, fields: t.StructType) -> str | None:
    try:
        json_row(line, fields)
    except Misfit as e:
        return str(e)
    return None


def of(dt: t.DataType, nullable: bool = True) -> t.StructType:
    return t.StructType([t.StructField("c", dt, nullable)])


def block_of(*lines: bytes) -> LineBlock:
    return split_lines(b"\n".join(lines), 1, True)[0]


def fast(block: LineBlock, fields: t.StructType) -> list[dict[str, Any]] | None:
    """What the columns give, or None where they leave a row to the row parser."""
    return taken(jsonl.fitting_reader(fields), block, fields)


def fast_csv(block: LineBlock, fields: t.StructType) -> list[dict[str, Any]] | None:
    return taken(lambda b: delimited.read_columns(b, fields, fields.fieldNames()), block, fields)


def taken(read: ColumnsReader, block: LineBlock, fields: t.StructType) -> list[dict[str, Any]] | None:
    try:
        arrays, fit = read(block)
    except (Unfit, pa.ArrowInvalid):
        return None
    for array in arrays:
        array.validate(full=True)
    return None if fit is not None else pa.RecordBatch.from_arrays(arrays, names=fields.fieldNames()).to_pylist()


def judged(line: bytes, fields: t.StructType) -> dict[str, Any]:
    row = json_row(line, fields)
    arrays = [pa.array([row[f.name]], arrow_type(f.dataType)) for f in fields]
    return pa.RecordBatch.from_arrays(arrays, names=fields.fieldNames()).to_pylist()[0]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


def check(line: bytes, fields: t.StructType) -> None:
    found = fast(block_of(line), fields)
    if found is not None:
        assert why_not(line, fields) is None, (line, found)
        assert same(found[0], judged(line, fields)), (found, judged(line, fields))


REASONS: list[tuple[t.StructType, bytes, str]] = [
    (of(t.IntegerType()), b'{"c": "abc"}', 'column "c": "abc" is not an int'),
    (of(t.IntegerType()), b'{"c": 1.5}', 'column "c": 1.5 is not an int'),
    (of(t.IntegerType()), b'{"c": 1.0}', 'column "c": 1.0 is not an int'),
    (of(t.IntegerType()), b'{"c": 1e2}', 'column "c": 1e2 is not an int'),
    (of(t.IntegerType()), b'{"c": true}', 'column "c": true is not an int'),
    (of(t.IntegerType()), b'{"c": 2147483648}', 'column "c": 2147483648 is out of range for an int'),
    (of(t.LongType()), b'{"c": 9223372036854775808}', 'column "c": 9223372036854775808 is out of range for a long'),
    (of(t.StringType()), b'{"c": 5}', 'column "c": 5 is not a string'),
    (of(t.StringType()), b'{"c": {"a": 1}}', 'column "c": an object is not a string'),
    (of(t.StringType()), b'{"c": []}', 'column "c": a list is not a string'),
    (of(t.BooleanType()), b'{"c": "true"}', 'column "c": "true" is not a boolean'),
    (of(t.BooleanType()), b'{"c": 1}', 'column "c": 1 is not a boolean'),
    (of(t.DoubleType()), b'{"c": "1.5"}', 'column "c": "1.5" is not a double'),
    (of(t.DoubleType()), b'{"c": 1e999}', 'column "c": 1e999 is out of range for a double'),
    (of(t.FloatType()), b'{"c": 1e39}', 'column "c": 1e39 is out of range for a float'),
    (of(t.DoubleType()), b'{"c": 1e-400}', 'column "c": 1e-400 is too small for a double: it would become 0'),
    (of(t.DoubleType()), b'{"c": -0.01E-0399}', 'column "c": -0.01E-0399 is too small for a double: it would become 0'),
    (of(t.FloatType()), b'{"c": 1e-50}', 'column "c": 1e-50 is too small for a float: it would become 0'),
    (
        of(t.FloatType()),
        b'{"c": 0.' + b"0" * 50 + b"1}",
        'column "c": 0.' + "0" * 50 + "1 is too small for a float: it would become 0",
    ),
    (
        of(t.ArrayType(t.DoubleType())),
        b'{"c": [0, 1e-400]}',
        'column "c[]": 1e-400 is too small for a double: it would become 0',
    ),
    (of(t.DoubleType()), b'{"c": NaN}', "not JSON: NaN must be written as a string"),
    (of(t.DecimalType(5, 2)), b'{"c": 1.005}', 'column "c": 1.005 does not fit a decimal(5,2)'),
    (of(t.DecimalType(5, 2)), b'{"c": 1000}', 'column "c": 1000 does not fit a decimal(5,2)'),
    (of(t.DecimalType(5, 2)), b'{"c": "ten"}', 'column "c": "ten" is not a decimal(5,2)'),
    (of(t.DateType()), b'{"c": "2026-02-30"}', 'column "c": "2026-02-30" is not a date'),
    (of(t.DateType()), b'{"c": "0000-00-00"}', 'column "c": "0000-00-00" is not a date'),
    (of(t.DateType()), b'{"c": "12024-01-01"}', 'column "c": "12024-01-01" is not a date'),
    (of(t.DateType()), b'{"c": "+1900-02-29"}', 'column "c": "+1900-02-29" is not a date'),
    (of(t.DateType()), b'{"c": "+5881580-07-12"}', 'column "c": "+5881580-07-12" is out of range for a date'),
    (of(t.DateType()), b'{"c": 20000}', 'column "c": 20000 is not a date'),
    (of(t.TimestampType()), b'{"c": 1700000000}', 'column "c": 1700000000 is not a timestamptz'),
    (
        of(t.TimestampType()),
        b'{"c": "-290308-12-21T19:59:05.224192+00:01"}',
        'column "c": "-290308-12-21T19:59:05.224192+00:01" is out of range for a timestamptz',
    ),
    (
        of(t.TimestampNTZType()),
        b'{"c": "2026-01-01T00:00:00Z"}',
        'column "c": "2026-01-01T00:00:00Z" has an offset, and a timestamp has none',
    ),
    (
        of(t.TimestampType()),
        b'{"c": "2026-01-01T00:00:00.1234567Z"}',
        'column "c": "2026-01-01T00:00:00.1234567Z" has more than six digits of a second',
    ),
    (of(t.BinaryType()), b'{"c": "QQ"}', 'column "c": "QQ" is not base64'),
    (of(t.StringType(), False), b"{}", 'column "c" is missing and required'),
    (of(t.StringType(), False), b'{"c": null}', 'column "c" is null and required'),
    (of(t.StringType()), b'{"c": "x", "foo": 1}', 'unknown column "foo"'),
    (of(t.StringType()), b'{"_ingest_seq": 1}', 'column "_ingest_seq" is Strandline\'s own'),
    (of(t.StringType()), b'{"_ingest_partition": 1}', 'column "_ingest_partition" is Strandline\'s own'),
    (of(t.StringType()), b'{"c": "x", "c": "y"}', 'column "c" occurs twice'),
    (of(t.StringType()), b'{"c": "x"', "not JSON: Expecting ',' delimiter at character 10"),
    (of(t.StringType()), b'{"c": "x"} {"c": "y"}', "not JSON: Extra data at character 12"),
    (of(t.StringType()), b"[1]", "not an object"),
    (of(t.StringType()), b"null", "not an object"),
    (of(t.StringType()), b'"x"', "not an object"),
    (of(t.StringType()), b'{"c": "\xff"}', "invalid UTF-8 at byte 8"),
    (of(t.StringType()), b'{"c": "\\ud800"}', 'column "c": "\\ud800" has half a surrogate pair'),
    (of(t.StringType()), b'{"c": ' + b"[" * 100_000 + b"}", "not JSON that can be read: nested too deeply"),
    (of(t.StringType()), b'{"c": "' + b"a" * 10 + b'", "' + b"b" * 100 + b'": 1}', 'unknown column "' + "b" * 58 + "…"),
    (of(t.IntegerType()), b'{"c": "' + b"a" * 100 + b'"}', 'column "c": "' + "a" * 58 + "… is not an int"),
    (NESTED, b'{"id": 1, "o": {"p": "x"}}', 'column "o.p": "x" is not an int'),
    (NESTED, b'{"id": 1, "o": {}}', 'column "o.p" is missing and required'),
    (NESTED, b'{"id": 1, "o": {"p": 1, "z": 2}}', 'unknown column "o.z"'),
    (NESTED, b'{"id": 1, "o": {"p": 1, "p": 2}}', 'column "o.p" occurs twice'),
    (NESTED, b'{"id": 1, "o": {"p": 1, "q": ["a", 5]}}', 'column "o.q[]": 5 is not a string'),
    (NESTED, b'{"id": 1, "o": {"p": 1, "q": [null]}}', 'column "o.q[]" is null and required'),
    (NESTED, b'{"id": 1, "o": []}', 'column "o": a list is not an object'),
    (NESTED, b'{"id": 1, "a": {"p": 1}}', 'column "a": an object is not a list'),
    (NESTED, b'{"id": 1, "a": [{"p": null}]}', 'column "a[].p" is null and required'),
    (NESTED, b'{"id": 1, "m": {"x": "1"}}', 'column "m{}": "1" is not a long'),
    (NESTED, b'{"id": 1, "m": {"x": 1, "x": 2}}', 'column "m": the key "x" occurs twice'),
    (NESTED, b'{"id": 1, "m": [{"key": "x", "value": 1}]}', 'column "m": a list is not an object'),
    (NESTED, b'{"id": 1, "m": {"x"}}', "not JSON: Expecting ':' delimiter at character 20"),
    (NESTED, b'{"id": 1, "k": {"x": {"p": 1}}}', 'column "k{key}": "x" is not an int'),
    (NESTED, b'{"id": 1, "k": {"1": null}}', 'column "k{}" is null and required'),
    (NESTED, b'{"id": 1, "k": {"1": {"p": 1, "q": [1]}}}', 'column "k{}.q[]": 1 is not a string'),
]


@pytest.mark.parametrize(("fields", "line", "reason"), REASONS, ids=[str(i) for i in range(len(REASONS))])
def test_a_row_that_does_not_fit_is_told_why(fields: t.StructType, line: bytes, reason: str) -> None:
    assert why_not(line, fields) == reason
    assert fast(block_of(line), fields) is None


FITS: list[tuple[t.DataType, bytes, Any]] = [
    (t.DoubleType(), b"0e-400", 0.0),
    (t.DoubleType(), b"-0.000", -0.0),
    (t.DoubleType(), b"5e-324", 5e-324),
    (t.DoubleType(), b"1", 1.0),
    (t.DoubleType(), b'"NaN"', math.nan),
    (t.DoubleType(), b'"-Infinity"', -math.inf),
    (t.FloatType(), b'"Infinity"', math.inf),
    (t.DecimalType(5, 2), b"1.500", "1.50"),
    (t.DecimalType(5, 2), b'"999.99"', "999.99"),
    (t.DecimalType(5, 2), b"-1e2", "-100.00"),
    (t.DecimalType(5, 2), b"0.000", "0.00"),
    (t.BinaryType(), b'"aGk="', b"hi"),
    (t.BinaryType(), b'""', b""),
    (t.TimestampType(), b'"2026-01-01T01:00:00+01:00"', "2026-01-01 00:00:00+00:00"),
    (t.TimestampType(), b'"2026-01-01 01:00:00.5"', "2026-01-01 01:00:00.500000+00:00"),
    (t.TimestampType(), b'"2026-01-01"', "2026-01-01 00:00:00+00:00"),
    (t.TimestampNTZType(), b'"2026-01-01T23:59"', "2026-01-01 23:59:00"),
    (t.DateType(), b'"9999-12-31"', "9999-12-31"),
    (t.StringType(), b'"\\u0000\\ud83d\\ude00"', "\0😀"),
]


@pytest.mark.parametrize(("dt", "written", "value"), FITS)
def test_a_value_that_fits_is_read_exactly(dt: t.DataType, written: bytes, value: Any) -> None:
    line = b'{"c": ' + written + b"}"
    assert why_not(line, of(dt)) is None
    read = judged(line, of(dt))["c"]
    assert same(read, value) or str(read) == value
    check(line, of(dt))


# What people write, right and wrong, and near misses of both.
TEXTS = st.one_of(
    st.text(max_size=8),
    st.dates().map(str),
    st.datetimes().map(lambda d: d.isoformat()),
    st.from_regex(
        r"[0-9]{3,4}-[0-9]{2}-[0-3][0-9]([T ][0-2][0-9](:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,8})?)?)?)?", fullmatch=True
    ),
    st.from_regex(
        r"20[0-9]{2}-0[1-9]-[0-2][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](Z|[+-][0-2][0-9]:?([0-6][0-9])?)",
        fullmatch=True,
    ),
    st.from_regex(r"[+-]?[0-9]{0,12}\.?[0-9]{0,4}([eE][+-]?[0-9]{0,3})?", fullmatch=True),
    st.binary(max_size=7).map(lambda b: base64.b64encode(b).decode()),
    st.from_regex(r"[A-Za-z0-9+/=]{0,8}", fullmatch=True),
    st.sampled_from(
        ["true", "True", "FALSE", "NaN", "nan", "inf", "Infinity", "-Infinity", "0x1F", "", " 1", "1 ", "null"]
    ),
)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-200, 200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,11})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "Inf",
            "01",
            "+1",
            ".5",
            "1.",
            "-",
            "1e999",
            "-0",
            "-0.0",
            "1e-400",
            "0e-400",
            "1e-46",
            "3.4028236e38",
        ]
    ),
)
VALUES = st.one_of(
    TEXTS.map(lambda s: json.dumps(s, ensure_ascii=False)),
    TEXTS.map(json.dumps),
    NUMBERS,
    st.sampled_from(["null", "true", "[]", "{}"]),
)


@settings(max_examples=scaled(100, 2000), deadline=None)
@given(st.sampled_from(sorted(SCALARS)), VALUES)
def test_columns_take_no_scalar_that_the_row_parser_refuses_nor_read_it_otherwise(name: str, written: str) -> None:
    check(f'{{"{name}": {written}}}'.encode("utf-8", "surrogatepass"), FLAT)


@pytest.mark.parametrize(
    "written", ["7E28", "0.7E29", "70000000000000000000000000000", "2e28", "-9E65", "9" * 66, "5E60"]
)
@pytest.mark.parametrize("scale", [0, 10, 38])
def test_a_decimal_that_is_too_large_is_refused_and_never_another_number(written: str, scale: int) -> None:
    """Arrow moves the point of a decimal without looking whether there is room."""
    fields = of(t.DecimalType(38, scale))
    check(f'{{"c": {written}}}'.encode(), fields)
    nested = t.StructType([t.StructField("c", t.ArrayType(t.DecimalType(38, scale)))])
    check(f'{{"c": [1, {written}]}}'.encode(), nested)
    rows = fast_csv(delimited.split_records(written.encode(), 1, True)[0], fields)
    assert rows is None or rows == [{"c": Decimal(written)}]


@settings(max_examples=scaled(100, 2000), deadline=None)
@given(st.sampled_from(sorted(SCALARS)), TEXTS)
def test_columns_read_csv_as_the_row_parser_does(name: str, text: str) -> None:
    fields = t.StructType([FLAT[name]])
    record = ('"' + text.replace('"', '""') + '"').encode("utf-8", "surrogatepass")
    rows = fast_csv(delimited.split_records(record, 1, True)[0], fields)
    if rows is not None:
        row = csv_row(record, fields, [name])
        assert same(rows[0][name], pa.array([row[name]], arrow_type(FLAT[name].dataType)).to_pylist()[0])


KEYS = st.sampled_from(["id", "o", "a", "m", "k", "p", "q", "key", "value", "1", "2", "x", "\\u006d", "", 'a\\"b'])
JSON_TREES = st.recursive(
    st.one_of(NUMBERS, st.sampled_from(['"x"', '"}"', '"{\\""', "null", "1", "true", '"\\\\"'])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: "[" + ",".join(v) + "]"),
        st.lists(st.tuples(KEYS, inner), max_size=3).map(lambda v: "{" + ", ".join(f'"{k}": {x}' for k, x in v) + "}"),
    ),
    max_leaves=8,
)
INNER_TEXT = st.sampled_from(
    ['{"p": 1}', '{"p": 2, "q": ["a", "}"]}', '{"q": []}', '{"p": null}', "null", '{"p": 1, "q": null}', "{}"]
)
PAIRS = st.tuples(
    st.sampled_from(["1", "x", "-5", "k\\n", "{", "]", ""]),
    st.one_of(INNER_TEXT, st.integers(0, 9).map(str), JSON_TREES),
)
MAPS = st.lists(PAIRS, max_size=4).map(lambda pairs: "{" + " ,".join(f'"{k}" :{v}' for k, v in pairs) + "}")
ROWS = st.fixed_dictionaries(
    {"id": st.sampled_from(["1", "2", "null", "1.5"])},
    optional={
        "o": st.one_of(INNER_TEXT, JSON_TREES),
        "a": st.one_of(st.lists(INNER_TEXT, max_size=3).map(lambda v: "[" + ",".join(v) + "]"), JSON_TREES),
        "m": st.one_of(MAPS, JSON_TREES),
        "k": st.one_of(MAPS, JSON_TREES),
        "z": JSON_TREES,
    },
).map(lambda row: "{" + ", ".join(f'"{k}": {v}' for k, v in row.items()) + "}")


@settings(max_examples=scaled(100, 2000), deadline=None)
@given(ROWS)
def test_columns_take_no_nested_row_that_the_row_parser_refuses_nor_read_it_otherwise(line: str) -> None:
    check(line.encode(), NESTED)


@settings(max_examples=scaled(100, 2000), deadline=None)
@given(ROWS, st.lists(st.tuples(st.integers(0, 200), st.sampled_from(list('{}[],:"\\ 1n'))), max_size=3))
def test_columns_are_not_fooled_by_damaged_json(line: str, edits: list[tuple[int, str]]) -> None:
    text = line
    for at, new in edits:
        at %= len(text)
        text = text[:at] + new + text[at + (1 if new != '"' else 0) :]
    check(text.encode(), NESTED)


def in_batches(lines: list[bytes], fields: t.StructType) -> Iterator[dict[str, Any]]:
    read = jsonl.fitting_reader(fields)
    for batch in to_batches([block_of(*lines)], fields, read, lambda line: json_row(line, fields)):
        yield from batch.to_pylist()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(ROWS, JSON_TREES, st.sampled_from(['{"id": 1}', "{}{}", "}", "{", '{"id":', "1}"])),
        min_size=1,
        max_size=120,
    )
)
def test_every_line_of_a_block_is_judged_on_its_own(lines: list[str]) -> None:
    encoded = [line.strip().encode() for line in lines]
    rows = list(in_batches(encoded, NESTED))
    assert len(rows) == len(lines)
    for line, row in zip(encoded, rows, strict=True):
        assert row[REJECT] == why_not(line, NESTED)
        assert row[RAW] == (None if row[REJECT] is None else line.decode())
        if row[REJECT] is None:
            assert same({f.name: row[f.name] for f in NESTED}, judged(line, NESTED))
        else:
            assert all(row[f.name] is None for f in NESTED)


GOOD = {
    "b": "true", "i": 1, "l": 2, "f": 1.5, "d": 2.5, "n": 3.25, "big": 1.5, "s": "é x", "x": "aGk=",
    "day": "2026-01-01", "ts": "2026-01-01T00:00:00", "tz": "2026-01-01T00:00:00Z",
}  # fmt: skip
BAD = {
    "b": "yes", "i": 2**31, "l": 2**63, "f": "x", "d": "x", "n": 3.125, "big": "1.5.", "x": "aGk", "day": "2026-02-30",
    "ts": "2026-13-01T00:00:00", "tz": "yesterday",
}  # fmt: skip


def dirty(format: str) -> tuple[list[bytes], int]:
    """Two thousand records with one in a hundred that does not fit, each time in another way."""
    records: list[bytes] = []
    names = list(BAD)
    for i in range(2000):
        row: dict[str, Any] = GOOD | {"l": i}
        if format == "json":
            row["b"] = True
        bad = i % 100 == 57
        if bad:
            name = names[i // 100 % len(names)]
            row[name] = BAD[name]
        quoted = ",".join(f'"{v}"' if k in ("s", "ts") else str(v) for k, v in row.items())
        records.append((json.dumps(row, ensure_ascii=False) if format == "json" else quoted).encode())
    broken = b'{"b": tru' if format == "json" else b"true,1"
    unreadable = records[0].replace("é".encode(), b"\xff")
    records[500:500] = [broken, unreadable]
    return records, 22


@pytest.mark.parametrize("format", ["json", "csv"])
def test_only_the_records_that_do_not_fit_are_read_one_by_one(format: str) -> None:
    """Else a file with a bad row in a hundred is read many times slower than a clean one."""
    records, bad = dirty(format)
    header = FLAT.fieldNames()

    def judge(record: bytes) -> dict[str, Any]:
        asked.append(record)
        return json_row(record, FLAT) if format == "json" else csv_row(record, FLAT, header)

    asked: list[bytes] = []
    if format == "json":
        block, read = block_of(*records), jsonl.fitting_reader(FLAT)
    else:
        block = delimited.split_records(b"\n".join(records), 1, True)[0]
        read = lambda b: delimited.read_columns(b, FLAT, header)  # noqa: E731
    batches = list(to_batches([block], FLAT, read, judge))
    assert len(batches) == 1
    assert len(asked) == bad
    rows = batches[0].to_pylist()
    assert [row[LINE] for row in rows] == list(range(1, len(records) + 1))
    assert [records[row[LINE] - 1] for row in rows if row[REJECT] is not None] == asked
    for record, row in zip(records, rows, strict=True):
        if row[REJECT] is None:
            expected = judged(record, FLAT) if format == "json" else judged_csv(record)
            assert same({f.name: row[f.name] for f in FLAT}, expected)


def judged_csv(record: bytes) -> dict[str, Any]:
    row = csv_row(record, FLAT, FLAT.fieldNames())
    return {f.name: pa.array([row[f.name]], arrow_type(f.dataType)).to_pylist()[0] for f in FLAT}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(SCALARS)), VALUES), min_size=1, max_size=80))
def test_every_flat_line_of_a_block_is_judged_on_its_own(values: list[tuple[str, str]]) -> None:
    lines = [f'{{"{name}": {written}}}'.encode("utf-8", "surrogatepass") for name, written in values]
    rows = list(in_batches(lines, FLAT))
    assert [row[REJECT] for row in rows] == [why_not(line, FLAT) for line in lines]
    for line, row in zip(lines, rows, strict=True):
        if row[REJECT] is None:
            assert same({f.name: row[f.name] for f in FLAT}, judged(line, FLAT))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SCALARS)), st.lists(TEXTS | NUMBERS, min_size=1, max_size=60))
def test_every_record_of_csv_is_judged_on_its_own(name: str, texts: list[str]) -> None:
    fields = t.StructType([FLAT[name], t.StructField("z", t.LongType())])
    quoted = [('"' + x.replace('"', '""') + '"').encode("utf-8", "surrogatepass") for x in texts]
    records = [cell + (b",1" if i % 7 else b",1,2") for i, cell in enumerate(quoted)]
    block = delimited.split_records(b"\n".join(records), 1, True)[0]
    read = lambda b: delimited.read_columns(b, fields, [name, "z"])  # noqa: E731
    found = [
        row
        for batch in to_batches([block], fields, read, lambda r: csv_row(r, fields, [name, "z"]))
        for row in batch.to_pylist()
    ]
    for record, row in zip(records, found, strict=True):
        try:
            expected = csv_row(record, fields, [name, "z"])
        except Misfit as e:
            assert row[REJECT] == str(e)
        else:
            assert row[REJECT] is None
            assert same(row[name], pa.array([expected[name]], arrow_type(fields[name].dataType)).to_pylist()[0])


def test_ordinary_rows_take_the_fast_way() -> None:
    flat = (
        b'{"b":true,"i":1,"l":2,"f":1.5,"d":2,"n":3.25,"big":"1.5","s":"x","x":"aGk=",'
        b'"day":"2026-01-01","ts":"2026-01-01T00:00:00","tz":"2026-01-01T00:00:00Z"}'
    )
    rows = fast(block_of(flat, b"{}", flat), FLAT)
    assert rows is not None
    assert rows[0] == rows[2] == judged(flat, FLAT)
    nested = b'{"id":1,"o":{"p":1,"q":["a"]},"a":[{"p":1},null],"m":{"x":1,"y":null},"k":{"7":{"p":1}}}'
    assert fast(block_of(nested, b'{"id":2,"m":{},"k":null}', nested), NESTED) is not None


ZONED = ("2026-01-01T01:02:03Z", "2026-01-01 01:02Z", "2026-01-01T00Z", "2026-01-01T01:02:03+02:00")
ODDLY_ZONED = (
    "2026-01-01",
    "2026-01-01T01:02:03",
    "2026-01-01Z",
    "2026-01-01TZ",
    "2026-01-01 Z",
    "ZZZZZZZZZZZZ",
    "éééééééZ",
)


@pytest.mark.parametrize("text", [*ZONED, *ODDLY_ZONED])
def test_a_moment_is_the_same_whether_all_others_have_a_zone_or_not(text: str) -> None:
    line, other = (f'{{"tz":"{written}"}}'.encode() for written in (text, ZONED[0]))
    check(line, FLAT)
    assert fast(block_of(other, b'{"tz":null}', other), FLAT) is not None
    together, alone = fast(block_of(other, line, b'{"tz":null}'), FLAT), fast(block_of(line), FLAT)
    assert (together is None) == (alone is None)
    if together is not None and alone is not None:
        assert [row["tz"] for row in together] == [judged(other, FLAT)["tz"], alone[0]["tz"], None]
    assert text not in ZONED or alone is not None


def test_two_lines_cannot_lend_each_other_a_value() -> None:
    lines = [b'{"c": 1}{"c": 2}', b'{"c":', b"3}"]
    reasons = [row[REJECT] for row in in_batches(lines, of(t.LongType()))]
    assert all(reasons)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=10)), max_size=20))
def test_a_column_of_base64_is_decoded_as_one_value_is(values: list[bytes | None]) -> None:
    from strandline.ingest.sources.columns import from_text

    texts = pa.array([None if v is None else base64.b64encode(v).decode() for v in values], pa.string())
    assert from_text(texts, t.BinaryType()).to_pylist() == values
    assert from_text(texts.slice(len(values) // 2), t.BinaryType()).to_pylist() == values[len(values) // 2 :]


CELLS = st.one_of(st.none(), st.text(st.sampled_from('a",\n\r é'), max_size=5))


@settings(max_examples=scaled(100, 1000))
@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_records_of_csv_are_cut_where_they_end(rows: list[list[str | None]], newline: str) -> None:
    def cell(value: str | None) -> str:
        return "" if value is None else '"' + value.replace('"', '""') + '"'

    text = newline.join(",".join(map(cell, row)) for row in rows)
    block, taken, _ = delimited.split_records(text.encode(), 1, True)
    assert taken == len(text.encode())
    assert block.suspect is None
    found = [
        [c if c or quoted else None for c, quoted in csv_cells(block.record(i).decode())] for i in range(len(block))
    ]
    assert found == rows
    starts = [text[: int(np.int64(s))].count("\n") + 1 for s in (len(text.encode()[:b].decode()) for b in block.starts)]
    assert block.lines.tolist() == starts


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("id;name", "Only commas are read. Convert it: python3"),
        ("ID,name", 'Names are case-sensitive. Write "id" for "ID"'),
        ("id, name", 'write "name" without the spaces'),
        ("1,x", "The first line must name the columns: id, name, more"),
        ("id,nane", 'Is "name" meant?'),
        ("id,zzzzzz", "or add it: strandline dataset alter"),
    ],
)
def test_a_header_that_does_not_fit_comes_with_a_hint_that_helps(tmp_path: Path, header: str, hint: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(header + "\n1,2\n")
    fields = t.StructType([t.StructField(name, t.StringType()) for name in ("id", "name", "more")])
    with pytest.raises(InputError) as e:
        delimited.read_header(identify(path), fields)
    assert hint in (e.value.hint or "")


def test_columns_that_a_file_lacks_are_named(tmp_path: Path) -> None:
    fields = t.StructType([t.StructField(name, t.StringType()) for name in ("id", "name", "more")])
    (tmp_path / "a.csv").write_text("name\nx\n")
    pq.write_table(pa.table({"id": ["1"], "more": ["x"]}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("{}\n")
    found = {name: absent_columns(identify(tmp_path / name), fields) for name in ("a.csv", "a.parquet", "a.jsonl")}
    assert found == {"a.csv": ("id", "more"), "a.parquet": ("name",), "a.jsonl": None}


@pytest.mark.parametrize("lines_inside", [True, False])
def test_a_long_record_is_gone_through_a_few_times_and_not_once_for_each_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines_inside: bool
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1000)
    field = b"\n" * 200_000 if lines_inside else b"a" * 200_000
    path = tmp_path / "a.csv"
    path.write_bytes(b"c,d\n1,2\n" + b'"' + field + b'",2\n3,4\n' + b"5,6\n" * 1000)
    scanned: list[int] = []

    def split(data: bytes, first_line: int, last: bool) -> tuple[LineBlock, int, int]:
        scanned.append(len(data))
        return delimited.split_records(data, first_line, last)

    source = identify(path)
    found = [
        (int(b.lines[i]), b.record(i))
        for b in lines.read_blocks(source, lines.ByteRange(0, source.size_bytes, 1), split)
        for i in range(len(b))
    ]
    assert sum(scanned) < 5 * source.size_bytes
    after = 4 + field.count(b"\n")
    assert [r for _, r in found[1:4]] == [b"1,2", b'"' + field + b'",2', b"3,4"]
    assert [n for n, _ in found[:5]] == [1, 2, 3, after, after + 1]
    assert len(found) == 1004


@pytest.mark.parametrize(
    ("record", "cells"),
    [
        ("", [("", False)]),
        (",", [("", False), ("", False)]),
        ('"",a', [("", True), ("a", False)]),
        ('5" pipe,x', [('5" pipe', False), ("x", False)]),
        ('"a""b"', [('a"b', True)]),
    ],
)
def test_a_quoted_empty_cell_is_text_and_a_bare_one_is_null(record: str, cells: list[tuple[str, bool]]) -> None:
    assert list(csv_cells(record)) == cells


@pytest.mark.parametrize(("record", "reason"), [('"a"b', "after the closing quote"), ('"a', "does not end")])
def test_broken_quotes_are_told(record: str, reason: str) -> None:
    with pytest.raises(Misfit, match=reason):
        list(csv_cells(record))


def test_a_stray_quote_does_not_swallow_the_lines_after_it() -> None:
    block, _, _ = delimited.split_records(b'5" pipe,1\n"a\nb",2\n"x"y,3\nz,4\n', 1, True)
    assert [block.record(i) for i in range(len(block))] == [b'5" pipe,1', b'"a\nb",2', b'"x"y,3', b"z,4"]
    assert block.lines.tolist() == [1, 2, 4, 5]
    assert block.suspect is not None
    assert block.suspect.tolist() == [True, False, True, False]


@pytest.mark.parametrize(("end", "codec"), [("", None), (".gz", "gzip"), (".zst", "zstd")])
def test_a_task_tells_how_many_bytes_of_its_file_it_has_read(tmp_path: Path, end: str, codec: str | None) -> None:
    path = tmp_path / f"a.jsonl{end}"
    with pa.OSFile(str(path), "wb") if codec is None else pa.CompressedOutputStream(str(path), codec) as out:
        for n in range(30):
            out.write(random.Random(n).randbytes(200_000).hex().encode() + b"\n")
    seen: list[int] = []
    source = identify(path)
    whole = ByteRange(0, source.size_bytes, 1)
    with watch_positions(seen.append) as positions:
        assert positions is not None
        positions.take(1)
        with report_to(positions.path, positions.take(1)):
            told = [positions.read_bytes() for _ in lines.read_blocks(source, whole, split_lines)]
    assert 0 < told[0] < source.size_bytes and told == sorted(told)
    assert seen[-1] == source.size_bytes and not Path(positions.path).exists()
    with report_to(positions.path, 0):
        lines.report(5)  # on another machine there is no such file
