"""A row's values as JSON, written as `docs/types.md` says, so that what was read can be ingested again."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
from pyspark.sql import types as t

Encoder = Callable[[Any], Any]


def row_encoder(schema: t.StructType) -> Encoder:
    """Chosen once for the schema, not once for each value: a timestamp's value does not say of which kind it is."""
    return _struct(schema)


def _encoder(kind: t.DataType) -> Encoder:
    match kind:
        case t.StructType():
            return _struct(kind)
        case t.ArrayType():
            element = _nullable(kind.elementType)
            return lambda values: [element(v) for v in values]
        case t.MapType():
            return _map(kind)
        case t.TimestampType():
            return _instant
        case t.TimestampNTZType():
            return lambda value: value.isoformat()
        case t.DateType():
            return lambda value: value.isoformat()
        case t.DecimalType():
            return lambda value: format(value, "f")
        case t.BinaryType():
            return lambda value: base64.b64encode(value).decode("ascii")
        case t.FloatType():
            return lambda value: _float(float(str(np.float32(value))))
        case t.DoubleType():
            return _float
        case _:
            return _as_is


def _as_is(value: Any) -> Any:
    return value


def _nullable(kind: t.DataType) -> Encoder:
    encode = _encoder(kind)
    return lambda value: None if value is None else encode(value)


def _struct(kind: t.StructType) -> Encoder:
    fields = [(f.name, _nullable(f.dataType)) for f in kind.fields]
    return lambda row: {name: encode(value) for (name, encode), value in zip(fields, row, strict=True)}


def _map(kind: t.MapType) -> Encoder:
    key, value = _encoder(kind.keyType), _nullable(kind.valueType)
    return lambda entries: {_key(key(k)): value(v) for k, v in entries.items()}


def _key(value: Any) -> str:
    """JSON's keys are strings: those of other types are written as CSV writes them."""
    return value if isinstance(value, str) else json.dumps(value)


def _instant(value: datetime | date) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value.isoformat()


def _float(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
