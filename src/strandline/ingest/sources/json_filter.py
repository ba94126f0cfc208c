"""Filters the JSON lines whose values have the types that the schema requires. This quick filter may reject good lines,
but passes no bad one. Arrow's parser reads the lines that pass, the row parser (`rows.py`) reads the others.

Lines of a file mostly have the same keys in the same order. There is a pattern for each such order, and one pass over a
block finds the lines that match it. Other lines are parsed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pydantic_core import from_json
from pyspark.sql import types as t

from strandline.iceberg.arrow_nested import Array
from strandline.ingest.sources.columns import TEXT
from strandline.ingest.sources.lines import LineBlock
from strandline.ingest.sources.misfits import Mask
from strandline.ingest.sources.values import INTEGER_BITS, NUMBER

pc: Any = pyarrow.compute

_SHAPES_MAX = 1000  # bounds the memory for files whose lines all have different keys
_PATTERNS_MAX = 4  # each costs a pass over the lines that no earlier one matched
_TRIED_LINES = 20  # at the start of a file, to learn a pattern from

_PLAIN_KEY = re.compile("[A-Za-z0-9_]+")
_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
_GAP = r"[ \t]*"

ValueCheck = Callable[[Any], bool]


class JsonFilter:
    def __init__(self, fields: t.StructType) -> None:
        self._types = {f.name: _types(f.dataType) for f in fields}
        self._checks = [(f.name, check) for f in fields if (check := _check(f.dataType)) is not None]
        self._values = {f.name: _pattern(f.dataType) for f in fields}
        self._shapes: dict[tuple[tuple[str, ...], tuple[type, ...]], bool] = {}
        self._patterns: dict[tuple[str, ...], str] = {}

    def plausible_lines(self, block: LineBlock) -> Mask:
        """Which lines pass. Lines with decimals in an unusual notation do not."""
        passing = np.zeros(len(block), bool)
        if not self._patterns:
            for i in range(min(len(block), _TRIED_LINES)):
                self._passes(block.record(i))
        offsets = np.append(block.starts, block.ends[-1]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(block.data)]
        lines: Array = pa.Array.from_buffers(pa.binary(), len(block), buffers)
        remaining = np.arange(len(block))
        for pattern in list(self._patterns.values()):
            matched = np.asarray(pc.match_substring_regex(lines.take(remaining), pattern))
            passing[remaining[matched]] = True
            remaining = remaining[~matched]
        for i in remaining.tolist():
            passing[i] = self._passes(block.record(i))
        passing[block.not_utf8()] = False
        return passing

    def _passes(self, line: bytes) -> bool:
        try:
            row = from_json(line, allow_inf_nan=False, cache_strings="keys")
        except ValueError:
            return False
        if type(row) is not dict:
            return False
        shape = (tuple(row), tuple(map(type, row.values())))
        if (is_valid := self._shapes.get(shape)) is None:
            is_valid = all(name in self._types and kind in self._types[name] for name, kind in zip(*shape, strict=True))
            if len(self._shapes) < _SHAPES_MAX:
                self._shapes[shape] = is_valid
            if is_valid:
                self._add_pattern(shape[0])
        if not is_valid:
            return False
        for name, check in self._checks:
            value = row.get(name)
            if value is not None and not check(value):
                return False
        return True

    def _add_pattern(self, keys: tuple[str, ...]) -> None:
        """Adds a pattern for lines with these keys, unless one of them is a nested column, whose values have none."""
        if keys in self._patterns or len(self._patterns) >= _PATTERNS_MAX or not keys:
            return
        members = []
        for key in keys:
            value = self._values[key]
            if value is None or not _PLAIN_KEY.fullmatch(key):
                return
            members.append(f'"{key}"{_GAP}:{_GAP}(?:{value}|null)')
        comma = f"{_GAP},{_GAP}"
        self._patterns[keys] = rf"^\{{{_GAP}{comma.join(members)}{_GAP}\}}[ \t\r\n]*$"


def _pattern(dt: t.DataType) -> str | None:
    match dt:
        case t.BooleanType():
            return "true|false"
        case t.FloatType() | t.DoubleType():
            return NUMBER
        case _ if type(dt) in INTEGER_BITS:
            digits = len(str(2 ** (INTEGER_BITS[type(dt)] - 1))) - 1
            return f"-?(?:0|[1-9][0-9]{{0,{digits - 1}}})"
        case t.DecimalType():
            whole = dt.precision - dt.scale
            units = f"0|[1-9][0-9]{{0,{whole - 1}}}" if whole else "0"
            fraction = rf"\.[0-9]{{1,{dt.scale}}}0*" if dt.scale else r"\.0+"
            number = f"-?(?:{units})(?:{fraction})?"
            return f'{number}|"{number}"'
        case _ if isinstance(dt, TEXT):
            return _STRING
    return None


def _types(dt: t.DataType) -> frozenset[type]:
    none = type(None)
    match dt:
        case t.BooleanType():
            return frozenset({bool, none})
        case t.FloatType() | t.DoubleType():
            return frozenset({int, float, none})
        case t.DecimalType():
            return frozenset({int, float, str, none})
        case t.ArrayType():
            return frozenset({list, none})
        case t.StructType() | t.MapType():
            return frozenset({dict, none})
        case _ if type(dt) in INTEGER_BITS:
            return frozenset({int, none})
        case _ if isinstance(dt, TEXT):
            return frozenset({str, none})
    return frozenset()


def _check(dt: t.DataType) -> ValueCheck | None:
    """A check of what the value's Python type does not show. None if there is nothing more to check."""
    match dt:
        case t.ArrayType():
            element = _deep(dt.elementType)
            return lambda values: all(map(element, values))
        case t.StructType():
            inner = {f.name: _deep(f.dataType) for f in dt}
            return lambda row: all(name in inner and inner[name](value) for name, value in row.items())
        case t.MapType():
            deep = _deep(dt.valueType)
            return lambda row: all(map(deep, row.values()))
        case _ if type(dt) in INTEGER_BITS:
            bound = 2 ** (INTEGER_BITS[type(dt)] - 1)
            return lambda value: -bound <= value < bound
        case t.DecimalType():
            # A float has lost the digits that decide. The patterns match the text, which has them.
            largest = 10 ** (dt.precision - dt.scale)
            return lambda value: type(value) is int and abs(value) < largest
    return None


def _deep(dt: t.DataType) -> ValueCheck:
    types, check = _types(dt), _check(dt)
    if check is None:
        return lambda value: type(value) in types
    return lambda value: value is None or (type(value) in types and check(value))
