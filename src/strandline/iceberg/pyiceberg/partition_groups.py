"""Divides rows by the partitions of a table, over whole columns: PyIceberg needs a further library for transforms over
Arrow. Importing this imports PyIceberg and Arrow."""

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
_KNOWN = (
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
        if not isinstance(field.transform, _KNOWN):
            raise SchemaError(f"the table is partitioned by {field.transform}, which Strandline does not know")


def divide(spec: PartitionSpec, schema: Schema, rows: pa.Table) -> Iterator[tuple[Key | None, pa.Table]]:
    """The rows of each partition, in their order; all of them with None if the table has no partitions."""
    if spec.is_unpartitioned():
        yield None, rows
        return
    encoded = [_encoded(_values(field, schema, rows)) for field in spec.fields]
    codes = reduce(lambda at, one: at * (len(one[1]) + 1) + one[0], encoded, np.zeros(rows.num_rows, np.int64))
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=codes[order][0] - 1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        first = order[start]
        record = Record(*(known[code[first]] if code[first] < len(known) else None for code, known in encoded))
        yield Key(record, _path(spec, schema, record)), rows.take(order[start:end])


def _path(spec: PartitionSpec, schema: Schema, record: Record) -> str:
    """A folder for people: readers of the table use the manifests."""
    try:
        return spec.partition_to_path(record, schema)
    except (OverflowError, ValueError):  # Python's own times have fewer years
        return "/".join(f"{quote(f.name)}={quote(str(record[n]), safe='')}" for n, f in enumerate(spec.fields))


def _encoded(values: Any) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """For each row the position of its value in the list of all values; a null has the position after the last."""
    found = values.dictionary_encode()
    known = found.dictionary.to_pylist()
    return pc.fill_null(found.indices.cast(pa.int64()), len(known)).to_numpy(zero_copy_only=False), known


def _values(field: PartitionField, schema: Schema, rows: pa.Table) -> Any:
    """A value for each row, as manifests store it: a date is the number of its day, a UUID is bytes."""
    name, kind = schema.find_column_name(field.source_id), schema.find_type(field.source_id)
    if name is None:
        raise SchemaError(f"the table is partitioned by {field.name}, and the column is gone")
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
    raise SchemaError(f"the table is partitioned by {field.transform}, which Strandline does not know")


def _column(rows: pa.Table, path: str) -> Any:
    if path in rows.column_names:
        return rows.column(path).combine_chunks()
    outer, *inner = path.split(".")
    found: Any = rows.column(outer).combine_chunks()
    for name in inner:
        found = found.flatten()[[f.name for f in found.type].index(name)]
    return found


def _stored(array: Any) -> Any:
    if is_uuid(array.type):
        return array.storage
    if pa.types.is_date(array.type):
        return array.cast(pa.int32())
    return array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array


def _with_nulls(made: npt.NDArray[Any], source: Any) -> Any:
    return pa.array(made.astype(np.int32), mask=pc.is_null(source).to_numpy(zero_copy_only=False))


def _integers(source: Any) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = pc.fill_null(_stored(source).cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return numbers


def _time(source: Any, unit: Any) -> Any:
    found = _integers(source)
    days = found if pa.types.is_date(source.type) else np.floor_divide(found, _DAY_MICROSECONDS)
    micros = found * _DAY_MICROSECONDS if pa.types.is_date(source.type) else found
    return _with_nulls(unit(days, micros).astype(np.int64), source)


def _truncated(source: Any, kind: IcebergType, truncate: Any) -> Any:
    width = truncate.width
    if isinstance(kind, StringType):
        return pc.utf8_slice_codeunits(source, 0, width)
    if isinstance(kind, BinaryType):
        return pc.binary_slice(source, 0, width)
    if pa.types.is_integer(source.type):
        found = _integers(source)
        return pa.array(found - np.mod(found, width), mask=pc.is_null(source).to_numpy(zero_copy_only=False))
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
    """PyIceberg transforms one value at a time."""
    found = source.dictionary_encode()
    return pa.array([transform(v) for v in found.dictionary.to_pylist()], kind).take(found.indices)


def murmur3(content: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> _Hashes:
    """MurmurHash3 of 32 bits, with seed 0, of each value: the bytes between two offsets."""
    lengths, starts = np.diff(offsets), offsets[:-1]
    found: _Hashes = np.zeros(len(lengths), np.uint32)
    blocks = lengths // 4
    for block in range(int(blocks.max(initial=0))):
        active = np.flatnonzero(blocks > block)
        at = starts[active] + 4 * block
        mixed = found[active] ^ _mix(_word(content, at, 4))
        found[active] = _rotate(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    for rest in (1, 2, 3):
        active = np.flatnonzero(lengths % 4 == rest)
        found[active] ^= _mix(_word(content, starts[active] + 4 * blocks[active], rest))
    found ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ found >> np.uint32(shift)) * np.uint32(factor)
    return found ^ found >> np.uint32(16)


def _word(content: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size: int) -> _Hashes:
    word: _Hashes = np.zeros(len(at), np.uint32)
    for n in range(size):
        word |= content[at + n].astype(np.uint32) << np.uint32(8 * n)
    return word


def _mix(word: _Hashes) -> _Hashes:
    return _rotate(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotate(word: _Hashes, by: int) -> _Hashes:
    return word << np.uint32(by) | word >> np.uint32(32 - by)
