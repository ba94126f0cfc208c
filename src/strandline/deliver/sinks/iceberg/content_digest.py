"""The digest of a chunk's rows, as Spark hands them over: the same before they are written and when they are read back.

It is over values, not over files, because others rewrite the files of a table. It does not depend on how Arrow divides
the rows, on the order of columns, on types that were widened, nor on columns that hold only nulls, such as those that
the table got later. Strings and lists are hashed by their lengths and contents, so different rows do not look alike.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_NULLS, _VALUES = b"\0nulls", b"\0values"


def content_digest(rows: pa.Table) -> str:
    """`sha256:…` of rows that are sorted by sequence number."""
    digest = hashlib.sha256(rows.num_rows.to_bytes(8, "little"))
    for name in sorted(rows.column_names):
        _add_named(digest, name, rows.column(name).combine_chunks())
    return f"sha256:{digest.hexdigest()}"


def _add_named(digest: Any, name: str, array: Any) -> None:
    if array.null_count == len(array):
        return
    digest.update(len(name.encode()).to_bytes(8, "little") + name.encode())
    _add(digest, array)


def _add(digest: Any, array: Any) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from strandline.iceberg.arrow_nested import list_parts
    from strandline.iceberg.pyiceberg.arrow_values import binary_content

    digest.update(len(array).to_bytes(8, "little"))
    if array.null_count:
        digest.update(_NULLS)
        digest.update(np.packbits(pc.is_valid(array).to_numpy(zero_copy_only=False)).tobytes())
        array = array.drop_null()
    digest.update(_VALUES)
    kind = array.type
    if pa.types.is_struct(kind):
        for name, child in sorted(zip([f.name for f in kind], array.flatten(), strict=True), key=lambda c: c[0]):
            _add_named(digest, name, child)
        return
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets, values = list_parts(array)
        digest.update(np.diff(offsets).astype("<i8").tobytes())
        _add(digest, values)
        return
    if _is_bytes(kind):
        texts = array.cast(pa.large_binary())
        digest.update(pc.binary_length(texts).to_numpy(zero_copy_only=False).astype("<i8").tobytes())
        digest.update(np.ascontiguousarray(binary_content(texts)).tobytes())
        return
    digest.update(_fixed_width(array))


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    t = pa.types
    return t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind) or (
        t.is_fixed_size_binary(kind)
    )  # fmt: skip


def _fixed_width(array: Any) -> bytes:
    """The content of an array without nulls whose values all have the same width; narrow types are widened first."""
    import numpy as np
    import pyarrow as pa

    kind = array.type
    if pa.types.is_decimal(kind):
        wide = pa.concat_arrays([array.cast(pa.decimal128(38, kind.scale))])
        start = wide.offset * 16
        return bytes([kind.scale]) + bytes(wide.buffers()[1].to_pybytes()[start : start + len(wide) * 16])
    if pa.types.is_floating(kind):
        numbers = array.cast(pa.float64()).to_numpy(zero_copy_only=False).astype("<f8")
        return bytes(np.where(np.isnan(numbers), np.float64("nan"), numbers).tobytes())
    if pa.types.is_boolean(kind):
        return bytes(array.cast(pa.uint8()).to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return bytes(array.cast(pa.int64()).to_numpy(zero_copy_only=False).astype("<i8").tobytes())
