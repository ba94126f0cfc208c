"""Applies the rules of `values.py` to whole Arrow columns: converts an array as a whole, or raises `Unfit`.

A *carrier* is the array that Arrow's JSON parser returns for a column, before the rules are applied: text for all types
that JSON writes as text, a list of key and value for a map. That parser is strict about JSON's own types: it converts
no number to text, no fraction to an integer, and refuses unknown and duplicate keys.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import types as t

from strandline.iceberg.arrow_nested import Array
from strandline.ingest.sources.values import DECIMAL, INTEGER, NOT_ZERO, NUMBER, unsupported

ArrowType = Any
pc: Any = pyarrow.compute

KEY, VALUE = "key", "value"

_FIXED: dict[type[t.DataType], ArrowType] = {
    t.BooleanType: pa.bool_(),
    t.ByteType: pa.int8(),
    t.ShortType: pa.int16(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DoubleType: pa.float64(),
    t.StringType: pa.string(),
    t.BinaryType: pa.binary(),
    t.DateType: pa.date32(),
    t.TimestampType: pa.timestamp("us", "UTC"),
    t.TimestampNTZType: pa.timestamp("us"),
}
TEXT = (t.StringType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType)

_DIGITS_MAX = 76  # of Arrow's widest decimal

_DAY_MIN = -719_162  # 0001-01-01; the row parser reads dates outside of these bounds
_DAY_MAX = 2_932_896  # 9999-12-31
_MICROSECONDS_PER_DAY = 86_400_000_000

_DAY_CHARS = 10
_ZONED = r"^.{11}.*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"


class Unfit(Exception):
    """At least one value of the array does not fit, or cannot be read this way."""


def arrow_type(dt: t.DataType) -> ArrowType:
    """The Arrow type that Spark takes. It is nullable at all levels: required values are checked before."""
    match dt:
        case t.DecimalType():
            return pa.decimal128(dt.precision, dt.scale)
        case t.ArrayType():
            return pa.list_(arrow_type(dt.elementType))
        case t.MapType():
            return pa.map_(arrow_type(dt.keyType), arrow_type(dt.valueType))
        case t.StructType():
            return pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in dt])
        case _ if type(dt) in _FIXED:
            return _FIXED[type(dt)]
    raise unsupported(dt)


def carrier_type(dt: t.DataType) -> ArrowType:
    match dt:
        case t.ArrayType():
            return pa.list_(carrier_type(dt.elementType))
        case t.MapType():
            return pa.list_(pa.struct([pa.field(KEY, pa.string()), pa.field(VALUE, carrier_type(dt.valueType))]))
        case t.StructType():
            return pa.struct([pa.field(f.name, carrier_type(f.dataType)) for f in dt])
        case _ if isinstance(dt, TEXT):
            return pa.string()
        case t.DecimalType():
            return _roomy(dt)
        case _:
            return arrow_type(dt)


def _roomy(dt: t.DecimalType) -> ArrowType:
    """A decimal type that is wide enough for all numbers that pass Arrow's check. Arrow reads a number's digits, checks
    how many there are, and then moves the point without a check. So a number that is too large for 128 bits would
    become another one (7E28 as a decimal(38,10) becomes 1.9E27). In this type it stays as it is, and can be refused."""
    return pa.decimal256(_DIGITS_MAX - dt.scale, dt.scale)


def from_carrier(array: Array, dt: t.DataType) -> Array:
    """Converts a carrier. The caller validates UTF-8 and the precision of decimals: one call does it for a whole
    table."""
    match dt:
        case t.FloatType() | t.DoubleType():
            # refuses an overflow, and a NaN without quotes, which is not JSON
            return _demand(array, pc.is_finite(array))
        case t.ArrayType():
            elements = _required(from_carrier(array.values, dt.elementType), dt.containsNull)
            return _rebuilt(array, arrow_type(dt), 2, [elements])
        case t.StructType():
            return _struct(array, dt)
        case t.MapType():
            return _map(array, dt)
        case _ if isinstance(dt, TEXT):
            return from_text(array, dt)
        case t.DecimalType():
            return array.cast(arrow_type(dt))
        case _:
            return array


def from_text(array: Array, dt: t.DataType) -> Array:
    match dt:
        case t.StringType():
            return array
        case t.BooleanType():
            lower = pc.ascii_lower(array)
            return pc.equal(_demand(lower, pc.is_in(lower, pa.array(["true", "false", None]))), "true")
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return _matching(array, INTEGER).cast(arrow_type(dt))
        case t.FloatType() | t.DoubleType():
            number = _matching(array, NUMBER).cast(arrow_type(dt))
            _demand(number, pc.invert(became_zero(array, number)))
            return _demand(number, pc.is_finite(number))
        case t.DecimalType():
            number = _matching(array, DECIMAL).cast(_roomy(dt))
            number.validate(full=True)
            return number.cast(arrow_type(dt))
        case t.DateType():
            return _within(array.cast(pa.date32()), pa.int32(), _DAY_MIN, _DAY_MAX)
        case t.TimestampType() | t.TimestampNTZType():
            return _timestamp(array, dt)
        case t.BinaryType():
            return _base64(array)
    raise unsupported(dt)


def became_zero(written: Array, number: Array) -> Array:
    """Which numbers are so small that they became zero as a float."""
    zero = pc.equal(number, 0)
    if not pc.any(zero).as_py():
        return zero
    return pc.and_(zero, pc.match_substring_regex(written, f"^{NOT_ZERO}"))


def required_columns(arrays: Sequence[Array], fields: t.StructType) -> None:
    for array, field in zip(arrays, fields, strict=True):
        _required(array, field.nullable)


def _required(array: Array, nullable: bool) -> Array:
    if not nullable and array.null_count:
        raise Unfit
    return array


def _demand(array: Array, fits: Array) -> Array:
    if pc.all(fits).as_py() is False:
        raise Unfit
    return array


def _matching(array: Array, pattern: str) -> Array:
    return _demand(array, pc.match_substring_regex(array, f"^(?:{pattern})$"))


def _within(array: Array, storage: ArrowType, lowest: int, highest: int) -> Array:
    bounds = pc.min_max(array.view(storage)).as_py()
    if bounds["min"] is not None and not lowest <= bounds["min"] <= bounds["max"] <= highest:
        raise Unfit
    return array


def _timestamp(array: Array, dt: t.DataType) -> Array:
    moments = (_zoned(array) if isinstance(dt, t.TimestampType) else array).cast(arrow_type(dt))
    first, last = _DAY_MIN * _MICROSECONDS_PER_DAY, (_DAY_MAX + 1) * _MICROSECONDS_PER_DAY - 1
    return _within(moments, pa.int64(), first, last)


def _zoned(array: Array) -> Array:
    """The texts, with UTC for those without a zone."""
    length = pc.binary_length(array)
    # true for nearly all files, and ten times as fast as the pattern
    if pc.all(pc.and_(pc.ends_with(array, "Z"), pc.greater(length, _DAY_CHARS + 1))).as_py():
        return array
    zoned = pc.match_substring_regex(array, _ZONED)
    if pc.all(zoned).as_py():
        return array
    utc = pc.if_else(pc.equal(length, _DAY_CHARS), pa.scalar("T00Z"), pa.scalar("Z"))
    return pc.if_else(zoned, array, pc.binary_join_element_wise(array, utc, ""))


def _rebuilt(array: Array, new_type: ArrowType, own_buffers: int, children: list[Array]) -> Array:
    """The same nesting around converted children."""
    buffers = array.buffers()[:own_buffers]
    return pa.Array.from_buffers(new_type, len(array), buffers, array.null_count, array.offset, children)


def _struct(array: Array, dt: t.StructType) -> Array:
    children = []
    for index, field in enumerate(dt):
        child = array.field(index)
        if not field.nullable and child.null_count and pc.any(pc.and_(array.is_valid(), child.is_null())).as_py():
            raise Unfit
        children.append(from_carrier(child, field.dataType))
    return _rebuilt(array, arrow_type(dt), 1, children)


def _map(array: Array, dt: t.MapType) -> Array:
    entries = array.values
    keys = _required(from_text(entries.field(0), dt.keyType), nullable=False)
    values = _required(from_carrier(entries.field(1), dt.valueType), dt.valueContainsNull)
    _demand_distinct(pc.list_parent_indices(array), keys)
    pair = pa.struct([pa.field(KEY, keys.type, nullable=False), pa.field(VALUE, values.type)])
    paired = pa.Array.from_buffers(pair, len(keys), [None], 0, 0, [keys, values])
    return _rebuilt(array, arrow_type(dt), 2, [paired])


def _demand_distinct(owners: Array, keys: Array) -> None:
    """Raises Unfit if a key is in one map twice."""
    encoded = keys.dictionary_encode()
    pairs = owners.to_numpy() * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
    pairs.sort()
    if (pairs[1:] == pairs[:-1]).any():
        raise Unfit


def _base64(array: Array) -> Array:
    """Decodes base64, which Arrow does not have."""
    try:
        decoded = [None if text is None else a2b_base64(text, strict_mode=True) for text in array.to_pylist()]
    except ValueError as e:
        raise Unfit from e
    return pa.array(decoded, pa.binary())
