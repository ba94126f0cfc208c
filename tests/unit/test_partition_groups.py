"""Rows are divided as Iceberg's own transforms divide them, one value at a time."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from strandline.core.errors import SchemaError
from strandline.iceberg.pyiceberg.partition_groups import check_spec, divide

_LONGS = st.integers(-(1 << 62), (1 << 62) - 1)
_TIMES = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)  # microseconds: those of Python's own years
KINDS: dict[str, tuple[IcebergType, st.SearchStrategy[Any], list[str]]] = {
    "int": (IntegerType(), st.integers(-(1 << 31), (1 << 31) - 1), ["identity", "bucket[7]", "truncate[10]"]),
    "long": (LongType(), _LONGS, ["identity", "bucket[16]", "truncate[1000]", "void"]),
    "string": (StringType(), st.text(max_size=20), ["identity", "bucket[5]", "truncate[3]"]),
    "binary": (BinaryType(), st.binary(max_size=20), ["identity", "bucket[5]", "truncate[2]"]),
    "fixed": (FixedType(5), st.binary(min_size=5, max_size=5), ["identity", "bucket[5]"]),
    "uuid": (UUIDType(), st.uuids().map(lambda u: u.bytes), ["identity", "bucket[5]"]),
    "decimal": (
        DecimalType(30, 4),
        st.integers(-(10**29), 10**29).map(lambda n: Decimal(n).scaleb(-4)),
        ["identity", "bucket[9]", "truncate[50]"],
    ),
    "date": (DateType(), st.integers(-700_000, 2_900_000), ["identity", "year", "month", "day", "bucket[5]"]),
    "timestamp": (TimestampType(), _TIMES, ["identity", "year", "month", "day", "hour", "bucket[5]"]),
    "timestamptz": (TimestamptzType(), _TIMES, ["identity", "year", "month", "day", "hour", "bucket[5]"]),
}


def column(kind: IcebergType, values: list[Any]) -> pa.Array[Any]:
    target = schema_to_pyarrow(kind)
    if isinstance(kind, DateType):
        return pa.array(values, pa.int32()).cast(target)
    if isinstance(kind, TimestampType | TimestamptzType):
        return pa.array(values, pa.int64()).cast(target)
    if isinstance(kind, UUIDType):
        return pa.ExtensionArray.from_storage(target, pa.array(values, pa.binary(16)))
    return pa.array(values, target)


@settings(max_examples=25)
@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_each_row_is_in_the_partition_that_iceberg_puts_it_in(name: str, data: st.DataObject) -> None:
    kind, strategy, transforms = KINDS[name]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=30))
    schema = Schema(NestedField(1, "at", LongType()), NestedField(2, "v", kind))
    rows = pa.table({"at": pa.array(range(len(values)), pa.int64()), "v": column(kind, values)})
    for text in transforms:
        transform = parse_transform(text)
        spec = PartitionSpec(PartitionField(2, 1000, transform, "p"))
        alone = transform.transform(kind)
        raw = [UUID(bytes=v) if v is not None and isinstance(kind, UUIDType) else v for v in values]
        if isinstance(kind, DecimalType):
            raw = rows["v"].to_pylist()  # with all digits after the point
        wanted = [alone(v) for v in raw]
        if text == "identity":
            wanted = values
        found: dict[int, Any] = {}
        for key, group in divide(spec, schema, rows):
            assert key is not None and key.to_path().startswith("p=")
            places = group["at"].to_pylist()
            assert places == sorted(places), "rows keep their order"
            assert not found.keys() & set(places)
            found |= dict.fromkeys(places, key.partition[0])
        assert [found[n] for n in range(len(values))] == wanted, text


def test_rows_are_divided_by_several_columns_and_inside_a_struct() -> None:
    inner = StructType(NestedField(4, "city", StringType()))
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "k", StringType()), NestedField(3, "who", inner))
    spec = PartitionSpec(
        PartitionField(2, 1000, parse_transform("identity"), "k"),
        PartitionField(1, 1001, parse_transform("truncate[10]"), "tens"),
        PartitionField(4, 1002, parse_transform("identity"), "city"),
    )
    rows = pa.table({
        "n": pa.array([1, 12, 3, 14, 5], pa.int64()),
        "k": ["a", "a", None, "a", "a"],
        "who": pa.array([{"city": "x"}, {"city": "x"}, None, {"city": "x"}, {"city": "x"}]),
    })  # fmt: skip
    found = {
        tuple(key.partition[n] for n in range(3)): group["n"].to_pylist()
        for key, group in divide(spec, schema, rows)
        if key
    }
    assert found == {("a", 0, "x"): [1, 5], ("a", 10, "x"): [12, 14], (None, 0, None): [3]}


def test_times_beyond_pythons_own_years_have_a_partition() -> None:
    schema, spec = Schema(NestedField(1, "v", TimestampType())), PartitionSpec
    rows = pa.table({"v": pa.array([-(10**17), 10**18], pa.int64()).cast(pa.timestamp("us"))})
    for text, wanted in (("identity", {-(10**17), 10**18}), ("hour", {-27777778, 277777777}), ("year", {-3169, 31688})):
        field = PartitionField(1, 1000, parse_transform(text), "p")
        assert {key.partition[0] for key, _ in divide(spec(field), schema, rows) if key} == wanted, text


def test_a_table_without_partitions_gets_one_file() -> None:
    rows = pa.table({"n": np.arange(3)})
    assert [(key, group.num_rows) for key, group in divide(PartitionSpec(), Schema(), rows)] == [(None, 3)]


def test_a_transform_that_nobody_here_knows_is_refused_before_rows_are_sent() -> None:
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform("zorder(a)"), "p"))
    with pytest.raises(SchemaError, match="does not support"):
        check_spec(spec)
