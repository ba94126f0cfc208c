"""Arrow columns that need more than a cast: parts of nested ones, field ids, uuids as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

Array = Any  # a pyarrow array: its stubs are generic over types that are only known at run time
pc: Any = compute

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_UUID_CHARS = 36
_HYPHENS = (8, 13, 18, 23)
_DIGITS = [n for n in range(_UUID_CHARS) if n not in _HYPHENS]
_SLICE_ROWS = 65_536  # converted at a time, because the conversion takes more memory than its result


def list_parts(array: Any) -> tuple[Any, Any]:
    """The offsets of a list or map column, shifted to begin at 0, and its values (of a map: its entries). Values that
    belong to null rows are left out."""
    bounds = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.diff(bounds)
    if pa.types.is_map(array.type):
        values = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    else:
        values = array.values
    values = values.slice(bounds[0], bounds[-1] - bounds[0])
    nulls = pc.is_null(array).to_numpy(zero_copy_only=False)
    if lengths[nulls].any():  # a null list may still have values in the buffer
        values = values.filter(pa.array(np.repeat(~nulls, lengths)))
        lengths = np.where(nulls, 0, lengths)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))), values


def is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def uuid_texts(array: Any) -> Any:
    """Uuids as strings. Writes the text bytes directly: one Python object per uuid would take ten times the memory."""
    raw = array.storage if isinstance(array, pa.ExtensionArray) else array
    count = len(raw)
    texts = np.empty((count, _UUID_CHARS), np.uint8)
    texts[:, _HYPHENS] = ord("-")
    uuids = np.frombuffer(raw.buffers()[1] or b"", np.uint8)[16 * raw.offset : 16 * (raw.offset + count)]
    for start in range(0, count, _SLICE_ROWS):
        part = uuids[16 * start : 16 * min(start + _SLICE_ROWS, count)].reshape(-1, 16)
        texts[start : start + _SLICE_ROWS, _DIGITS[::2]] = _HEX[part >> 4]
        texts[start : start + _SLICE_ROWS, _DIGITS[1::2]] = _HEX[part & 15]
    offsets = pa.py_buffer(np.arange(0, (count + 1) * _UUID_CHARS, _UUID_CHARS, dtype=np.int32).data)
    valid = None if not raw.null_count else raw.is_valid().buffers()[1]
    return pa.Array.from_buffers(pa.string(), count, [valid, offsets, pa.py_buffer(texts.data)])


def field_id(field: pa.Field[Any]) -> int | None:
    """The id of a column in an Iceberg table. None in files and streams without ids."""
    text = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if text is None else int(text)
