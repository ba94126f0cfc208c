"""Finds the values that keep a column from being converted as a whole. Searches all values at once.

A file with one bad row in a hundred has one in every block. Searching each block by halves would cost many times as
much as reading it. Patterns over whole columns find nearly all bad values in one pass. A pattern may flag a value that
fits: then the row parser reads that row, which is slower and gives the same result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyspark.sql import types as t

from strandline.iceberg.arrow_nested import Array
from strandline.ingest.sources.columns import Unfit, arrow_type, became_zero
from strandline.ingest.sources.lines import LineBlock
from strandline.ingest.sources.values import INTEGER_BITS, NUMBER

pc: Any = pyarrow.compute

Mask = npt.NDArray[np.bool_]
Convert = Callable[[Array], Array]

_LEAF_VALUES = 8  # for fewer, checking one value after another costs less than halving

_SMALL_SIGNS = (b"e-", b"E-", b"0.000000000")
# A number that is too small for a float has a long row of zeros, or an exponent like this.
_SMALL = re.compile(rb"[eE]-0*(?:3[5-9]|[4-9][0-9]|[1-9][0-9]{2,})|0\.0{9}")

_DAY = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"(?:[01][0-9]|2[0-3])(?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?)?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"


def convert_fitting(
    arrays: Sequence[Array], fields: Sequence[t.StructField], converts: Sequence[Convert], unfit: Mask | None = None
) -> tuple[list[Array], Mask | None]:
    """The converted columns of those rows in which all values fit, and which rows these are (None: all). `unfit` are
    rows that are known not to fit.

    Raises the errors of `converts` if the rows that do not fit cannot be found."""
    converted: list[tuple[Array, Mask | None]] = []
    bad = np.zeros(len(arrays[0]), bool) if unfit is None else unfit.copy()
    for array, field, convert in zip(arrays, fields, converts, strict=True):
        column, misfits = _convert(array, field.dataType, convert)
        if misfits is not None:
            bad |= misfits
        converted.append((column, misfits))
        if not field.nullable and array.null_count:
            bad |= _mask(array.is_null())
    if not bad.any():
        return [column for column, _ in converted], None
    fits = ~bad
    return [column.filter(pa.array(fits if misfits is None else fits[~misfits])) for column, misfits in converted], fits


def _convert(array: Array, dt: t.DataType, convert: Convert) -> tuple[Array, Mask | None]:
    """The values that fit, converted, and which values do not fit (None: all fit)."""
    try:
        return convert(array), None
    except (Unfit, pa.ArrowInvalid):
        bad = _find_by_pattern(array, dt)
    try:
        return convert(array.filter(pa.array(~bad))), bad
    except (Unfit, pa.ArrowInvalid):
        _search_by_halves(array, np.flatnonzero(~bad), convert, bad)
        return convert(array.filter(pa.array(~bad))), bad


def may_have_become_zero(block: LineBlock, arrays: Sequence[Array], fields: t.StructType) -> Mask | None:
    """Which JSON lines have a zero in a float column, and a number that is small enough to have become zero. None if
    there is no such line. Arrow's parser does not show how a zero was written."""
    zero = np.zeros(len(block), bool)
    for array, field in zip(arrays, fields, strict=True):
        if _holds_floats(field.dataType):
            flat = pa.types.is_floating(array.type)
            zero |= array.to_numpy(zero_copy_only=False) == 0 if flat else _mask(array.is_valid())
    if not zero.any() or not any(sign in block.data for sign in _SMALL_SIGNS):
        return None
    zero[zero] = [_SMALL.search(block.record(i)) is not None for i in np.flatnonzero(zero).tolist()]
    return zero if zero.any() else None


def _holds_floats(dt: t.DataType) -> bool:
    match dt:
        case t.ArrayType():
            return _holds_floats(dt.elementType)
        case t.MapType():
            return _holds_floats(dt.keyType) or _holds_floats(dt.valueType)
        case t.StructType():
            return any(_holds_floats(f.dataType) for f in dt)
        case _:
            return isinstance(dt, (t.FloatType, t.DoubleType))


def _search_by_halves(array: Array, positions: npt.NDArray[np.int64], convert: Convert, bad: Mask) -> None:
    """Marks the bad values at these positions. They match the pattern, such as the 30th of February."""
    if not len(positions):
        return
    try:
        convert(array.take(pa.array(positions)))
    except (Unfit, pa.ArrowInvalid):
        if len(positions) == 1:
            bad[positions] = True
            return
        step = 1 if len(positions) <= _LEAF_VALUES else -(-len(positions) // 2)
        for start in range(0, len(positions), step):
            _search_by_halves(array, positions[start : start + step], convert, bad)


def _find_by_pattern(array: Array, dt: t.DataType) -> Mask:
    """Which values do not match the type's pattern or range."""
    if pa.types.is_floating(array.type):
        return _mask(pc.invert(pc.is_finite(array)))
    pattern = _pattern(dt)
    if pattern is None or not pa.types.is_string(array.type):
        return np.zeros(len(array), bool)
    bad = _mask(pc.invert(pc.match_substring_regex(array, f"^(?:{pattern})$")))
    if type(dt) in INTEGER_BITS:
        bound = 2 ** (INTEGER_BITS[type(dt)] - 1)
        numbers = pc.if_else(pa.array(bad), pa.scalar(None, pa.string()), array).cast(pa.int64())
        bad |= _mask(pc.or_(pc.less(numbers, -bound), pc.greater(numbers, bound - 1)))
    if isinstance(dt, (t.FloatType, t.DoubleType)):
        written = pc.if_else(pa.array(bad), pa.scalar(None, pa.string()), array)
        numbers = written.cast(arrow_type(dt))
        bad |= _mask(pc.or_(pc.invert(pc.is_finite(numbers)), became_zero(written, numbers)))
    return bad


def _pattern(dt: t.DataType) -> str | None:
    match dt:
        case t.BooleanType():
            return "(?i:true|false)"
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return "-?(?:0|[1-9][0-9]{0,17}|[1-8][0-9]{18}|9[01][0-9]{17})"  # below 2**63, by its digits
        case t.FloatType() | t.DoubleType():
            return NUMBER
        case t.DecimalType():
            whole = dt.precision - dt.scale
            return rf"[+-]?0*[0-9]{{{min(1, whole)},{whole}}}(?:\.[0-9]{{0,{dt.scale}}}0*)?"
        case t.DateType():
            return _DAY
        case t.TimestampNTZType():
            return f"{_DAY}(?:[T ]{_CLOCK})?"
        case t.TimestampType():
            return f"{_DAY}(?:[T ]{_CLOCK}{_ZONE})?"
        case t.BinaryType():
            return _BASE64
    return None


def _mask(flags: Array) -> Mask:
    """The flags as a mask, in which nulls are not set."""
    return np.asarray(flags.fill_null(False))
