"""Converts Arrow values between Spark's and Iceberg's types, column by column. (A `uuid` is text in Spark.)"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import ListType, MapType, NestedField, StructType, UUIDType

from strandline.iceberg.arrow_nested import field_id, is_uuid, list_parts, uuid_texts

pc: Any = compute

_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_HEX[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)
_UUID_TEXT = 36
_HYPHENS = (8, 13, 18, 23)


def to_iceberg(array: Any, kind: pa.DataType) -> Any:
    """Casts the values to the type of a column without loss. Raises ValueError or ArrowInvalid for a value that does
    not fit."""
    if is_uuid(kind):
        return _uuids(array, kind)
    if pa.types.is_struct(kind):
        names = [f.name for f in array.type]
        children = dict(zip(names, array.flatten(), strict=True))
        fields = list(cast("Any", kind))
        converted = [
            to_iceberg(children[f.name], f.type) if f.name in children else pa.nulls(len(array), f.type) for f in fields
        ]
        return pa.StructArray.from_arrays(converted, fields=fields, mask=pc.is_null(array))
    if pa.types.is_map(kind):
        offsets, entries = list_parts(array)
        keys, items = entries.flatten()
        pair = [to_iceberg(keys, kind.key_type), to_iceberg(items, kind.item_type)]
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), *pair, type=kind, mask=pc.is_null(array))
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        offsets, values = list_parts(array)
        large = pa.types.is_large_list(kind)
        build = pa.LargeListArray if large else pa.ListArray
        positions = pa.array(offsets if large else offsets.astype(np.int32))
        return build.from_arrays(positions, to_iceberg(values, kind.value_type), type=kind, mask=pc.is_null(array))
    return array.cast(kind)


def from_file(array: Any, in_file: pa.Field[Any], field: NestedField) -> Any:
    """A column of a data file in Spark's types, with the current names and types of the table. Nested columns are
    matched by field ids. PyIceberg's own projection would turn a null list of structs into an empty one."""
    kind, wanted = array.type, field.field_type
    if isinstance(wanted, StructType):
        by_id = dict(zip(map(field_id, kind), zip(kind, array.flatten(), strict=True), strict=True))
        children = [_child(by_id.get(f.field_id), f, len(array)) for f in wanted.fields]
        return pa.StructArray.from_arrays(children, names=[f.name for f in wanted.fields], mask=pc.is_null(array))
    if isinstance(wanted, MapType):
        offsets, entries = list_parts(array)
        keys, items = entries.flatten()
        keys = from_file(keys, kind.key_field, wanted.key_field)
        items = from_file(items, kind.item_field, wanted.value_field)
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), keys, items, mask=pc.is_null(array))
    if isinstance(wanted, ListType):
        offsets, values = list_parts(array)
        elements = from_file(values, kind.value_field, wanted.element_field)
        return pa.LargeListArray.from_arrays(pa.array(offsets), elements, mask=pc.is_null(array))
    if isinstance(wanted, UUIDType):
        return uuid_texts(array).cast(pa.large_string())
    return array.cast(schema_to_pyarrow(wanted, include_field_ids=False))


def _child(child: tuple[Any, Any] | None, field: NestedField, rows: int) -> Any:
    if child is not None:
        return from_file(child[1], child[0], field)
    return pa.nulls(rows)  # the type does not matter


def _uuids(texts: Any, kind: Any) -> Any:
    """The uuids of texts such as `12345678-1234-1234-1234-123456789abc`. Raises ValueError for other texts."""
    present = texts.drop_null().cast(pa.large_binary())
    if len(present) and pc.any(pc.not_equal(pc.binary_length(present), _UUID_TEXT)).as_py():
        raise ValueError("a UUID has 36 characters")
    letters = binary_content(present).reshape(-1, _UUID_TEXT)
    digits = _HEX[np.delete(letters, _HYPHENS, axis=1)]
    if (letters[:, _HYPHENS] != ord("-")).any() or (digits > 15).any():
        raise ValueError("a UUID has hexadecimal digits, and hyphens at four places")
    packed = digits[:, 0::2] << 4 | digits[:, 1::2]
    uuids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(present), [None, pa.py_buffer(packed.tobytes())])
    return pa.ExtensionArray.from_storage(kind, uuids.take(_index_among_valid(texts)))


def _index_among_valid(array: Any) -> Any:
    """For each value, its index among those that are not null."""
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid)


def binary_content(array: Any) -> Any:
    """All bytes of a `large_binary` or `large_string` array without nulls, one value after the other."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or data is None:
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
