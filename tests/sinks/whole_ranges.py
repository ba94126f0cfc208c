"""Rows with values of every type that a dataset can have, over the whole range of the type, plain and nested.

As Spark hands them over: a `uuid` is text, and a `fixed` is bytes. There is no `time` and no timestamp in nanoseconds:
Spark cannot read them from Iceberg, and `dataset create` refuses them.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


_PLAIN: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
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
    "id": (st.uuids().map(str), pa.string()),
    "bytes": (st.binary(max_size=6), pa.binary()),
    "fixed": (st.binary(min_size=4, max_size=4), pa.binary()),
}


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def _list(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(_or_null(of), max_size=3)


def _map(keys: st.SearchStrategy[Any], of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(keys, _or_null(of), max_size=3).map(lambda found: list(found.items()))


_everything = st.fixed_dictionaries({name: _or_null(values) for name, (values, _) in _PLAIN.items()})
_EVERYTHING = pa.struct([(name, kind) for name, (_, kind) in _PLAIN.items()])
_deep = st.fixed_dictionaries({"of": _or_null(_list(_everything)), "by": _or_null(_map(_ints(32), _list(_ints(64))))})
_DEEP = pa.struct([("of", pa.list_(_EVERYTHING)), ("by", pa.map_(pa.date32(), pa.list_(pa.timestamp("us", "UTC"))))])

_VALUES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    **_PLAIN,
    "struct": (_everything, _EVERYTHING),
    "list": (_list(_ints(64)), pa.list_(pa.timestamp("us"))),
    "map": (_map(st.text(max_size=3), _PLAIN["money"][0]), pa.map_(pa.string(), pa.decimal128(38, 10))),
    "deep": (_deep, _DEEP),
}

rows = st.lists(st.tuples(*(_or_null(values) for values, _ in _VALUES.values())), min_size=1, max_size=10)


def _as_integers(kind: Any) -> Any:
    """Dates and times by the integers that they are: Python's own have fewer years."""
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_integers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_as_integers(kind.key_type), _as_integers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_as_integers(kind.value_type))
    return kind


def as_table(values: list[tuple[Any, ...]]) -> pa.Table:
    columns: dict[str, Any] = {"_ingest_seq": pa.array(range(1, len(values) + 1), pa.int64())}
    for n, (name, (_, kind)) in enumerate(_VALUES.items()):
        columns[name] = pa.array([v[n] for v in values], _as_integers(kind)).cast(kind)
    return pa.table(columns)


def is_read_back(found: pa.Table, values: list[tuple[Any, ...]]) -> bool:
    assert found.column_names == ["_ingest_seq", *_VALUES]
    columns = []
    for name, (_, kind) in _VALUES.items():
        assert found[name].type == kind or pa.types.is_nested(kind), (name, found[name].type)
        columns.append(found[name].cast(_as_integers(kind)).to_pylist())
    read = [tuple(map(_exact, row)) for row in zip(*columns, strict=True)]
    return read == [tuple(map(_exact, row)) for row in values]


def _exact(value: Any) -> Any:
    """NaN is NaN, and 0.0 is not -0.0."""
    match value:
        case float():
            return "NaN" if value != value else struct.pack("<d", value)
        case dict():
            return {name: _exact(v) for name, v in value.items()}
        case list() | tuple():
            return [_exact(v) for v in value]
    return value
