"""Takes Arrow columns with nested types apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

pc: Any = compute


def list_parts(array: Any) -> tuple[Any, Any]:
    """Offsets from 0 on, and the values of a list or the entries of a map, without those of nulls."""
    at = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.diff(at)
    if pa.types.is_map(array.type):
        values = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    else:
        values = array.values
    values = values.slice(at[0], at[-1] - at[0])
    nulls = pc.is_null(array).to_numpy(zero_copy_only=False)
    if lengths[nulls].any():  # a null may cover values, which nobody reads
        values = values.filter(pa.array(np.repeat(~nulls, lengths)))
        lengths = np.where(nulls, 0, lengths)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))), values


def is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"
