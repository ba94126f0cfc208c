"""Divides rows by the partitions of a table. Transforms are computed over whole columns: PyIceberg itself needs another
library for that. Importing this imports PyIceberg and Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IcebergType, StringType

from strandline.core.errors import SchemaError
from strandline.iceberg.arrow_nested import is_uuid
from strandline.iceberg.pyiceberg.arrow_values import binary_content

_Hashes = npt.NDArray[np.uint32]
_DAY_MICROSECONDS, _HOUR_MICROSECONDS = 86_400_000_000, 3_600_000_000
_SUPPORTED = (
    BucketTransform, DayTransform, HourTransform, IdentityTransform, MonthTransform, TruncateTransform, VoidTransform,
    YearTransform,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """The partition of a data file, as PyIceberg's writer takes it."""

    partition: Record
    path: str

    def to_path(self) -> str:
        return self.path


def check_spec(spec: PartitionSpec) -> None:
    """Raises SchemaError if rows cannot be divided by one of the transforms."""
    for field in spec.fields:
        if not isinstance(field.transform, _SUPPORTED):
            raise SchemaError(f"the table is partitioned by {field.transform}, which Strandline does not support")


def divide(spec: PartitionSpec, schema: Schema, rows: pa.Table) -> Iterator[tuple[Key | None, pa.Table]]:
    """The rows of each partition, in the order that they had. For an unpartitioned table: all rows, with None."""
    if spec.is_unpartitioned():
        yield None, rows
        return
    encoded = [_encoded(_values(field, schema, rows)) for field in spec.fields]
    codes = reduce(lambda code, one: code * (len(one[1]) + 1) + one[0], encoded, np.zeros(rows.num_rows, np.int64))
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=codes[order][0] - 1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        first = order[start]
        record = Record(*(values[code[first]] if code[first] < len(values) else None for code, values in encoded))
        yield Key(record, _path(spec, schema, record)), rows.take(order[start:end])


def _path(spec: PartitionSpec, schema: Schema, record: Record) -> str:
    """The partition's folder. It only helps people: readers of the table use the manifests."""
    try:
        return spec.partition_to_path(record, schema)
    except (OverflowError, ValueError):  # Python's own times have fewer years
        return "/".join(f"{quote(f.name)}={quote(str(record[n]), safe='')}" for n, f in enumerate(spec.fields))


def _encoded(values: Any) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """For each row the position of its value in the list of all values, and that list. A null has the position after
    the last one."""
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    return pc.fill_null(encoded.indices.cast(pa.int64()), len(distinct)).to_numpy(zero_copy_only=False), distinct


def _values(field: PartitionField, schema: Schema, rows: pa.Table) -> Any:
    """A value for each row, as manifests store it: a date is the number of its day, a UUID is bytes."""
    name, kind = schema.find_column_name(field.source_id), schema.find_type(field.source_id)
    if name is None:
        raise SchemaError(f"the table is partitioned by {field.name}, whose column was dropped")
    source = _column(rows, name)
    match field.transform:
        case VoidTransform():
            return pa.nulls(len(source), pa.int32())
        case IdentityTransform():
            return _stored(source)
        case YearTransform():
            return _time(source, lambda days, micros: days.astype("datetime64[D]").astype("datetime64[Y]"))
        case MonthTransform():
            return _time(source, lambda days, micros: days.astype("datetime64[D]").astype("datetime64[M]"))
        case DayTransform():
            return _time(source, lambda days, micros: days)
        case HourTransform():
            return _time(source, lambda days, micros: np.floor_divide(micros, _HOUR_MICROSECONDS))
        case TruncateTransform() as truncate:
            return _truncated(source, kind, truncate)
        case BucketTransform() as bucket:
            return _bucket(source, kind, bucket)
    raise SchemaError(f"the table is partitioned by {field.transform}, which Strandline does not support")


def _column(rows: pa.Table, path: str) -> Any:
    if path in rows.column_names:
        return rows.column(path).combine_chunks()
    outer, *inner = path.split(".")
    column: Any = rows.column(outer).combine_chunks()
    for name in inner:
        column = column.flatten()[[f.name for f in column.type].index(name)]
    return column


def _stored(array: Any) -> Any:
    if is_uuid(array.type):
        return array.storage
    if pa.types.is_date(array.type):
        return array.cast(pa.int32())
    return array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array


def _with_nulls(values: npt.NDArray[Any], source: Any) -> Any:
    """The values, with null where the source is null."""
    return pa.array(values.astype(np.int32), mask=pc.is_null(source).to_numpy(zero_copy_only=False))


def _integers(source: Any) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = pc.fill_null(_stored(source).cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return numbers


def _time(source: Any, unit: Any) -> Any:
    numbers = _integers(source)
    days = numbers if pa.types.is_date(source.type) else np.floor_divide(numbers, _DAY_MICROSECONDS)
    micros = numbers * _DAY_MICROSECONDS if pa.types.is_date(source.type) else numbers
    return _with_nulls(unit(days, micros).astype(np.int64), source)


def _truncated(source: Any, kind: IcebergType, truncate: Any) -> Any:
    width = truncate.width
    if isinstance(kind, StringType):
        return pc.utf8_slice_codeunits(source, 0, width)
    if isinstance(kind, BinaryType):
        return pc.binary_slice(source, 0, width)
    if pa.types.is_integer(source.type):
        numbers = _integers(source)
        return pa.array(numbers - np.mod(numbers, width), mask=pc.is_null(source).to_numpy(zero_copy_only=False))
    return _by_distinct_value(source, truncate.transform(kind), source.type)


def _bucket(source: Any, kind: IcebergType, bucket: Any) -> Any:
    if pa.types.is_decimal(source.type):
        return _by_distinct_value(source, bucket.transform(kind), pa.int32())
    if pa.types.is_integer(source.type) or pa.types.is_temporal(source.type):
        content = _integers(source).astype("<i8").view(np.uint8)
        offsets = np.arange(len(source) + 1, dtype=np.int64) * 8
    else:
        texts = _stored(source).cast(pa.large_binary())
        texts = pc.fill_null(texts, b"") if texts.null_count else texts
        content = binary_content(texts)
        lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    hashes = murmur3(content, offsets).astype(np.int64) & 0x7FFFFFFF
    return _with_nulls(hashes % bucket.num_buckets, source)


def _by_distinct_value(source: Any, transform: Any, kind: pa.DataType) -> Any:
    """Transforms each distinct value once, with PyIceberg, which takes one value at a time."""
    encoded = source.dictionary_encode()
    return pa.array([transform(v) for v in encoded.dictionary.to_pylist()], kind).take(encoded.indices)


def murmur3(content: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> _Hashes:
    """The 32-bit MurmurHash3, with seed 0, of each value. A value is the bytes between two offsets."""
    lengths, starts = np.diff(offsets), offsets[:-1]
    hashes: _Hashes = np.zeros(len(lengths), np.uint32)
    blocks = lengths // 4
    for block in range(int(blocks.max(initial=0))):
        active = np.flatnonzero(blocks > block)
        at = starts[active] + 4 * block
        mixed = hashes[active] ^ _mix(_word(content, at, 4))
        hashes[active] = _rotate(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    for rest in (1, 2, 3):
        active = np.flatnonzero(lengths % 4 == rest)
        hashes[active] ^= _mix(_word(content, starts[active] + 4 * blocks[active], rest))
    hashes ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ hashes >> np.uint32(shift)) * np.uint32(factor)
    return hashes ^ hashes >> np.uint32(16)


def _word(content: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size: int) -> _Hashes:
    word: _Hashes = np.zeros(len(at), np.uint32)
    for n in range(size):
        word |= content[at + n].astype(np.uint32) << np.uint32(8 * n)
    return word


def _mix(word: _Hashes) -> _Hashes:
    return _rotate(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotate(word: _Hashes, by: int) -> _Hashes:
    return word << np.uint32(by) | word >> np.uint32(32 - by)
