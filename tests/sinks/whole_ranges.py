"""Rows with values of every plain type, over the whole range of the type."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


_VALUES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "flag": (st.booleans(), pa.bool_()),
    "small": (_ints(32), pa.int32()),
    "large": (_ints(64), pa.int64()),
    "single": (st.floats(width=32), pa.float32()),
    "double": (st.floats(), pa.float64()),
    "money": (st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-10")), pa.decimal128(38, 10)),
    "day": (_ints(32), pa.date32()),
    "instant": (_ints(64), pa.timestamp("us", "UTC")),
    "local": (_ints(64), pa.timestamp("us")),
    "word": (st.text(max_size=6), pa.string()),
    "bytes": (st.binary(max_size=6), pa.binary()),
}
_AS_INTEGERS = {"day": pa.int32(), "instant": pa.int64(), "local": pa.int64()}

rows = st.lists(st.tuples(*(st.none() | values for values, _ in _VALUES.values())), min_size=1, max_size=30)


def as_table(values: list[tuple[Any, ...]]) -> pa.Table:
    """Dates and times by the integers that they are: Python's own have fewer years."""
    columns: dict[str, Any] = {"_ingest_seq": pa.array(range(1, len(values) + 1), pa.int64())}
    for n, (name, (_, kind)) in enumerate(_VALUES.items()):
        array = pa.array([v[n] for v in values], _AS_INTEGERS.get(name, kind))
        columns[name] = array.cast(kind) if name in _AS_INTEGERS else array
    return pa.table(columns)


def is_read_back(found: pa.Table, values: list[tuple[Any, ...]]) -> bool:
    assert found.column_names == ["_ingest_seq", *_VALUES]
    columns = [found[name].cast(_AS_INTEGERS.get(name, kind)).to_pylist() for name, (_, kind) in _VALUES.items()]
    read = [tuple(map(_exact, row)) for row in zip(*columns, strict=True)]
    return read == [tuple(map(_exact, row)) for row in values]


def _exact(value: Any) -> Any:
    """NaN is NaN, and 0.0 is not -0.0."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("<d", value)
    return value
