"""The rules for one written value and one type, in plain Python. The package's docstring states them.

Times are microseconds since 1970 (in UTC for a timestamptz), and dates are days, as Arrow takes them.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from strandline.core.errors import SchemaError

SHOWN_CHARS_MAX = 60

NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
INTEGER = r"-?(?:0|[1-9][0-9]*)"
DECIMAL = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?"
NOT_ZERO = r"-?[0.]*[1-9]"  # the beginning of a number that is not zero
SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_NUMBER = re.compile(NUMBER)
_NOT_ZERO = re.compile(NOT_ZERO)
_INTEGER = re.compile(INTEGER)
_DECIMAL = re.compile(DECIMAL)
_YEAR = "[0-9]{4}|[+-][0-9]{4,7}"  # a sign before 0 and after 9999, as ISO 8601, Spark and our own sinks write it
_DATE = re.compile(rf"({_YEAR})-([0-9]{{2}})-([0-9]{{2}})")
_TIMESTAMP = re.compile(
    rf"({_YEAR})-([0-9]{{2}})-([0-9]{{2}})"
    r"(?:[T ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?)?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_EPOCH_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_MICROSECONDS_PER_DAY = timedelta(days=1) // _MICROSECOND
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # the calendar repeats after these

_NAMES: dict[type[t.DataType], str] = {
    t.TimestampType: "a timestamptz",
    t.TimestampNTZType: "a timestamp",
    t.BinaryType: "base64",
    t.ArrayType: "a list",
    t.StructType: "an object",
    t.MapType: "an object",
    t.IntegerType: "an int",
}
INTEGER_BITS: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}


class Misfit(Exception):
    """Why a value does not fit, without its column."""


class NumberText(str):
    """A JSON number as it was written. A float would have lost digits."""


def named(dt: t.DataType) -> str:
    """The name of a type for messages, with its article."""
    if isinstance(dt, t.DecimalType):
        return f"a decimal({dt.precision},{dt.scale})"
    return _NAMES.get(type(dt)) or f"a {dt.typeName()}"


def show(value: Any) -> str:
    """A value as it was written, short enough for a message, and always valid text."""
    text = str(value) if isinstance(value, NumberText) else json.dumps(value, ensure_ascii=False)
    if len(text) > SHOWN_CHARS_MAX:
        text = text[: SHOWN_CHARS_MAX - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


def from_json_scalar(value: Any, dt: t.DataType) -> Any:
    """A JSON value that is neither null, object nor list. Raises Misfit."""
    match dt:
        case t.BooleanType():
            if isinstance(value, bool):
                return value
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            if isinstance(value, NumberText):
                return _integer(value, dt)
        case t.FloatType() | t.DoubleType():
            if isinstance(value, NumberText) or (isinstance(value, str) and value in SPECIAL_FLOATS):
                return _float(value, dt)
        case t.DecimalType():
            if isinstance(value, str):
                return _decimal(value, dt)
        case _:
            if isinstance(value, str) and not isinstance(value, NumberText):
                return from_text(value, dt)
    raise _misfit(value, dt)


def from_text(text: str, dt: t.DataType) -> Any:
    """Reads a value that is written as text: a cell of a CSV file, or the key of a map. Raises Misfit."""
    match dt:
        case t.StringType():
            return _string(text)
        case t.BooleanType():
            if text.isascii() and text.lower() in ("true", "false"):
                return text.lower() == "true"
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return _integer(text, dt)
        case t.FloatType() | t.DoubleType():
            return _float(text, dt)
        case t.DecimalType():
            return _decimal(text, dt)
        case t.DateType():
            return _date(text, dt)
        case t.TimestampType() | t.TimestampNTZType():
            return _timestamp(text, dt)
        case t.BinaryType():
            return _base64(text, dt)
    raise _misfit(text, dt)


def unsupported(dt: t.DataType) -> SchemaError:
    return SchemaError(f"files cannot be read into the type {dt.simpleString()}")


def _misfit(value: Any, dt: t.DataType) -> Misfit:
    return Misfit(f"{show(value)} is not {named(dt)}")


def _string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise Misfit(f"{show(text)} has half a surrogate pair") from e
    return text


def _integer(text: str, dt: t.DataType) -> int:
    if not _INTEGER.fullmatch(text):
        raise _misfit(text, dt)
    bound = 2 ** (INTEGER_BITS[type(dt)] - 1)
    # 20 characters are enough for any 64-bit number, and Python refuses to convert very long ones
    if len(text) > 20 or not -bound <= int(text) < bound:
        raise Misfit(f"{show(NumberText(text))} is out of range for {named(dt)}")
    return int(text)


def _float(text: str, dt: t.DataType) -> float:
    if not isinstance(text, NumberText) and text in SPECIAL_FLOATS:
        return SPECIAL_FLOATS[text]
    if not _NUMBER.fullmatch(text):
        raise _misfit(text, dt)
    # converted by way of a double, a float would be rounded twice
    value = float(pa.scalar(str(text)).cast(pa.float32()).as_py()) if isinstance(dt, t.FloatType) else float(text)
    if math.isinf(value):
        raise Misfit(f"{show(NumberText(text))} is out of range for {named(dt)}")
    if value == 0 and _NOT_ZERO.match(text):
        raise Misfit(f"{show(NumberText(text))} is too small for {named(dt)}: it would become 0")
    return value


def _decimal(text: str, dt: t.DecimalType) -> Decimal:
    if not (_NUMBER if isinstance(text, NumberText) else _DECIMAL).fullmatch(text):
        raise _misfit(text, dt)
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except ArithmeticError as e:
        raise _misfit(text, dt) from e
    significant = "".join(map(str, digits)).lstrip("0")
    stripped = significant.rstrip("0")
    power = int(exponent) + len(significant) - len(stripped) + dt.scale
    if not stripped:
        return Decimal((0, (0,), -dt.scale))
    if power < 0 or len(stripped) + power > dt.precision:
        raise Misfit(f"{show(NumberText(text))} does not fit {named(dt)}")
    unscaled = tuple(map(int, stripped)) + (0,) * power
    return Decimal((sign, unscaled, -dt.scale))


def _date(text: str, dt: t.DataType) -> int:
    if not (match := _DATE.fullmatch(text)):
        raise _misfit(text, dt)
    try:
        days = _days(*map(int, match.groups()))
    except ValueError as e:
        raise _misfit(text, dt) from e
    return _in_range(days, 32, text, dt)


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970, in the proleptic Gregorian calendar. Python's own dates end at the years 1 and 9999."""
    cycles, within = divmod(year - 2000, _CYCLE_YEARS)
    return (date(2000 + within, month, day) - _EPOCH_DAY).days + cycles * _CYCLE_DAYS


def _in_range(value: int, bits: int, text: str, dt: t.DataType) -> int:
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise Misfit(f"{show(text)} is out of range for {named(dt)}")
    return value


def _timestamp(text: str, dt: t.DataType) -> int:
    if not (match := _TIMESTAMP.fullmatch(text)):
        raise _misfit(text, dt)
    *clock, fraction, zone = match.groups()
    if zone and isinstance(dt, t.TimestampNTZType):
        raise Misfit(f"{show(text)} has an offset, and a timestamp has none")
    if fraction and len(fraction) > 6:
        raise Misfit(f"{show(text)} has more than six digits of a second")
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in clock)
        clock_time = time(hour, minute, second, int((fraction or "0").ljust(6, "0")))
        of_day = datetime.combine(_EPOCH_DAY, clock_time) - datetime.combine(_EPOCH_DAY, time())
        moment = _days(year, month, day) * _MICROSECONDS_PER_DAY + (of_day - _offset(zone)) // _MICROSECOND
    except ValueError as e:
        raise _misfit(text, dt) from e
    return _in_range(moment, 64, text, dt)


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone == "Z":
        return timedelta(0)
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError(zone)
    return timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)


def _base64(text: str, dt: t.DataType) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (ValueError, binascii.Error) as e:
        raise _misfit(text, dt) from e
