"""Writes Arrow rows as JSON lines, character for character as `iceberg/spark/row_text.py` does in the JVM. `read` and
`quarantine list` use it.

Raises OnlyJavaWrites for values that Python cannot write as Java does (a map whose keys are structs, text that is not
UTF-8): then Spark must write the rows.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import compute

from strandline.iceberg import java_numbers
from strandline.iceberg.arrow_nested import is_uuid, list_parts

pc: Any = compute

_TO_ESCAPE = re.compile(r'[\x00-\x1f"\\]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_DAY = 86_400_000_000
# From the year 0001 to 9999, times always have six digits after the seconds.
_FIRST, _LAST = -719_162 * _DAY, 2_932_897 * _DAY - 1
_NULL = "null"


class OnlyJavaWrites(ValueError):
    """The value cannot be written here as Spark writes it."""


def json_lines(rows: pa.RecordBatch, java: int) -> list[str]:
    """One JSON object per row. `java` is the major version of the Java whose notation of numbers is used."""
    try:
        return _objects([rows.column(n) for n in range(rows.num_columns)], rows.schema.names, rows.num_rows, java)
    except UnicodeDecodeError as e:
        raise OnlyJavaWrites(f"text that is not UTF-8: {e}") from e


def has_floats(kind: pa.DataType) -> bool:
    """Whether the type has floating-point numbers, which Java writes in its own notation."""
    if pa.types.is_floating(kind):
        return True
    nested = pa.types.is_nested(kind)
    return nested and any(has_floats(kind.field(n).type) for n in range(kind.num_fields))


def _objects(columns: Sequence[Any], names: Sequence[str], rows: int, java: int) -> list[str]:
    if not columns:
        return ["{}"] * rows
    keys = [f"{_quoted(name)}:" for name in names]
    texts = [_texts(column, java) for column in columns]
    return [
        "{" + ",".join(key + value for key, value in zip(keys, values, strict=True)) + "}"
        for values in zip(*texts, strict=True)
    ]


def _texts(array: Any, java: int) -> list[str]:
    """Each value as JSON."""
    kind = array.type
    if pa.types.is_null(kind):
        return [_NULL] * len(array)
    if is_uuid(kind):
        return _each(array.storage, lambda v: f'"{_uuid(v)}"')
    if pa.types.is_struct(kind):
        objects = _objects(array.flatten(), [kind.field(n).name for n in range(kind.num_fields)], len(array), java)
        return [text if valid else _NULL for text, valid in zip(objects, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_map(kind):
        offsets, entries = list_parts(array)
        keys, items = entries.flatten()
        pairs = [f"{key}:{value}" for key, value in zip(_keys(keys, java), _texts(items, java), strict=True)]
        return _grouped(array, offsets, pairs, "{}")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets, values = list_parts(array)
        return _grouped(array, offsets, _texts(values, java), "[]")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _each(array, _quoted)
    plain = _plain(kind, java)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _each(array, lambda v: _number(plain(v)))
    return _each(_as_numbers(array), lambda v: f'"{plain(v)}"')


def _keys(array: Any, java: int) -> list[str]:
    kind = array.type
    if pa.types.is_nested(kind):
        raise OnlyJavaWrites(f"keys of a map that are {kind}")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _each(array, _quoted)
    if is_uuid(kind):
        return _each(array.storage, lambda v: f'"{_uuid(v)}"')
    plain = _plain(kind, java)
    return _each(_as_numbers(array), lambda v: f'"{plain(v)}"')


def _grouped(array: Any, offsets: Any, texts: Sequence[str], brackets: str) -> list[str]:
    opened, closed = brackets[0], brackets[1]
    bounds, valid = offsets.tolist(), array.is_valid().to_pylist()
    return [
        f"{opened}{','.join(texts[bounds[n] : bounds[n + 1]])}{closed}" if valid[n] else _NULL
        for n in range(len(array))
    ]


def _each(array: Any, text: Callable[[Any], str]) -> list[str]:
    return [_NULL if value is None else text(value) for value in array.to_pylist()]


def _as_numbers(array: Any) -> Any:
    """Days and microseconds as integers: Python's dates begin with the year 1 and end with 9999."""
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32())
    return array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array


def _plain(kind: Any, java: int) -> Callable[[Any], str]:
    """A function that writes a value without quotes."""
    if pa.types.is_boolean(kind):
        return lambda v: "true" if v else "false"
    if pa.types.is_integer(kind):
        return str
    if pa.types.is_float64(kind):
        return lambda v: java_numbers.double_text(v, java)
    if pa.types.is_float32(kind):
        return lambda v: java_numbers.float_text(v, java)
    if pa.types.is_decimal(kind):
        return lambda v: f"{v:f}"
    if pa.types.is_date32(kind):
        return _date
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        zone = "" if kind.tz is None else "Z"
        return lambda v: _time(v) + zone
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return lambda v: base64.b64encode(v).decode()
    raise OnlyJavaWrites(f"values of the type {kind}")


def _number(text: str) -> str:
    """Puts infinities and NaN in quotes: JSON has no such numbers."""
    return f'"{text}"' if text[-1] in "yN" else text


def _quoted(text: str) -> str:
    return f'"{_TO_ESCAPE.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04X}"


def _uuid(value: bytes) -> str:
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _date(days: int) -> str:
    """The date that is so many days after 1970-01-01, in the calendar of ISO 8601. A year beyond four digits has a
    sign."""
    # Days since 1 March of the year 0, so that the leap day is the last day of its year.
    era, day = divmod(days + 719_468, 146_097)
    of_era = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * of_era + of_era // 4 - of_era // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    month = month + 3 if month < 10 else month - 9
    year = of_era + era * 400 + (month <= 2)
    written = f"{year:04d}" if 0 <= year <= 9999 else f"{'-' if year < 0 else '+'}{abs(year):04d}"
    return f"{written}-{month:02d}-{day + 1:02d}"


def _time(micros: int) -> str:
    days, rest = divmod(micros, _DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    text = f"{_date(days)}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if _FIRST <= micros <= _LAST:
        return f"{text}.{fraction:06d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text  # as Spark's cast to a string writes it
