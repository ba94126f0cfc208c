"""Reads Arrow IPC streams from untrusted clients: casts columns to the table's types if that loses nothing, and refuses
streams that would take too much memory.

A few bytes of Arrow can expand to very many: compressed buffers, dictionaries, run-end encoding, views, null columns,
structs without fields. The reader computes from a batch's metadata how much memory it will take (`arrow_layout`,
`arrow_cost`), before it reads the batch.

Strandline's senders use none of these. Clients compress with Content-Encoding, which is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.types as t

from strandline.core.errors import BadRow
from strandline.core.text.wording import plural
from strandline.core.types import INTERNAL_COLUMNS
from strandline.iceberg.arrow_nested import Array, uuid_texts
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct
from strandline.receive.body.arrow_cost import Cost, cost_of, fields_in
from strandline.receive.body.arrow_layout import RECORD_BATCH, SCHEMA, Frame, Message, frames
from strandline.receive.body.columns import arrow_schema, arrow_type
from strandline.receive.body.decompress import TooLarge

pc: Any = pyarrow.compute

_PLAIN_HINT = "Use plain types, and Content-Encoding to compress."
_SCHEMA_TEXT_BYTES_MAX = 1 << 20
_FIELDS_TOO_MANY = 64  # so many fields beyond the limit are still read, so that the error can name them
_SLICE_ROWS = 65_536  # converted at a time, where the conversion takes more memory than its result


def read_arrow(data: bytes | memoryview, columns: tuple[Column, ...], bytes_max: int, made_bytes_max: int) -> pa.Table:
    """The rows, in at most `bytes_max` bytes, of which at most `made_bytes_max` are not in `data` already. Raises
    TooLarge, or BadRow with the row's number as its line."""
    try:
        batches = list(_batches(memoryview(data), columns, bytes_max, made_bytes_max))
    except (pa.ArrowException, OSError, struct.error, ValueError, NotImplementedError) as e:
        raise BadRow(None, f"not an Arrow IPC stream that can be read: {str(e)[:200]}") from e
    return pa.Table.from_batches(batches, arrow_schema(columns))


def _batches(
    data: memoryview, columns: tuple[Column, ...], bytes_max: int, made_bytes_max: int
) -> Iterator[pa.RecordBatch]:
    found = frames(data)
    first = next(found, None)
    if first is None or Message(first.metadata).kind != SCHEMA:
        raise BadRow(None, "not an Arrow IPC stream: it does not begin with a schema")
    Message(first.metadata).check_schema(2 * fields_in(columns) + _FIELDS_TOO_MANY, _SCHEMA_TEXT_BYTES_MAX)
    schema = pa.ipc.read_schema(_message(data, first))
    fits = _fit_schema(schema, columns)
    rows = 0
    cost = Cost(0, 0)
    for frame in found:
        message = Message(frame.metadata)
        if message.kind != RECORD_BATCH:
            raise BadRow(None, f"an Arrow {message.kind_name} is not accepted. {_PLAIN_HINT}")
        if message.is_compressed:
            raise BadRow(None, f"compressed Arrow buffers are not accepted. {_PLAIN_HINT}")
        cost += cost_of(message, schema, columns)
        if cost.size > bytes_max or cost.made > made_bytes_max:
            raise TooLarge(bytes_max, f"{plural(rows + message.rows, 'row', 'takes')} more bytes than that")
        if message.rows == 0:
            continue
        batch = pa.ipc.read_record_batch(_message(data, frame), schema)
        batch.validate(full=True)  # offsets and texts come from clients, and are checked only here
        yield _fit_batch(batch, columns, fits, rows)
        rows += batch.num_rows


def _message(data: memoryview, frame: Frame) -> Any:
    return cast("Any", pa.ipc).read_message(pa.py_buffer(data[frame.start : frame.end]))


def _fit_schema(given: pa.Schema, columns: Sequence[Column]) -> dict[str, bool]:
    """Whether each column is present. Raises BadRow for a column that is unknown, duplicate, missing though required,
    or of an incompatible type."""
    known = {c.name: c for c in columns}
    for field in given:
        column = known.get(field.name)
        if column is None:
            own = field.name in INTERNAL_COLUMNS
            raise BadRow(
                None, f'column "{field.name}" is Strandline\'s own' if own else f'unknown column "{field.name}"'
            )
        if given.names.count(field.name) > 1:
            raise BadRow(None, f'column "{field.name}" occurs twice')
        if (why := _unfit(field.type, column.type, field.name)) is not None:
            raise BadRow(None, why)
    for column in columns:
        if column.required and column.name not in given.names:
            raise BadRow(None, f'column "{column.name}" is missing and required')
    return {c.name: c.name in given.names for c in columns}


def _unfit(given: Any, kind: ColumnType, path: str) -> str | None:
    """Why a type cannot be cast without loss or guessing; None if it can. The cast finds values that do not fit."""
    if t.is_null(given):
        return None
    match kind:
        case ListOf(element):
            if t.is_list(given) or t.is_large_list(given):
                return _unfit(given.value_type, element, path + "[]")
        case MapOf(key, value):
            if t.is_map(given):
                return _unfit(given.key_type, key, path + "{key}") or _unfit(given.item_type, value, path + "{}")
        case Struct(fields):
            if t.is_struct(given):
                return _unfit_struct(given, fields, path)
        case Primitive(name):
            if _ACCEPTS[name.partition("(")[0].partition("[")[0]](given):
                return None
    return f'column "{path}": {given} cannot become {arrow_type(kind)}'


def _unfit_struct(given: Any, fields: Sequence[Column], path: str) -> str | None:
    known = {f.name: f for f in fields}
    names = [f.name for f in given]
    for field in given:
        if field.name not in known or names.count(field.name) > 1:
            return f'unknown column "{path}.{field.name}"'
        if (why := _unfit(field.type, known[field.name].type, f"{path}.{field.name}")) is not None:
            return why
    missing = [f.name for f in fields if f.required and f.name not in names]
    return f'column "{path}.{missing[0]}" is missing and required' if missing else None


def _is_text(kind: Any) -> bool:
    return t.is_string(kind) or t.is_large_string(kind)


def _is_bytes(kind: Any) -> bool:
    return t.is_binary(kind) or t.is_large_binary(kind) or (t.is_fixed_size_binary(kind) and kind.byte_width > 0)


_ACCEPTS: dict[str, Callable[[Any], bool]] = {
    "boolean": t.is_boolean,
    "int": t.is_integer,
    "long": t.is_integer,
    "float": lambda kind: t.is_floating(kind) or t.is_integer(kind),
    "double": lambda kind: t.is_floating(kind) or t.is_integer(kind),
    "decimal": lambda kind: t.is_decimal(kind) or t.is_integer(kind),
    "date": t.is_date,
    "timestamp": lambda kind: t.is_timestamp(kind) and kind.tz is None,
    "timestamptz": lambda kind: t.is_timestamp(kind) and kind.tz is not None,
    "string": _is_text,
    "uuid": lambda kind: (
        _is_text(kind) or kind == pa.uuid() or (t.is_fixed_size_binary(kind) and kind.byte_width == 16)
    ),
    "fixed": _is_bytes,
    "binary": _is_bytes,
}


def _fit_batch(
    batch: pa.RecordBatch, columns: tuple[Column, ...], is_given: dict[str, bool], before: int
) -> pa.RecordBatch:
    arrays: list[Array] = []
    for column in columns:
        if not is_given[column.name]:
            arrays.append(pa.nulls(batch.num_rows, arrow_type(column.type)))
            continue
        try:
            arrays.append(_cast(batch.column(column.name), column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise _first_misfit(batch.column(column.name), column, before, e) from e
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _first_misfit(array: Array, column: Column, before: int, error: Exception) -> BadRow:
    lo, hi = 0, len(array)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        try:
            _cast(array.take(pa.array(np.arange(lo, middle))), column.type)
            lo = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            hi, error = middle, e
    return BadRow(before + lo + 1, f'column "{column.name}": {str(error)[:200]}')


def _cast(array: Array, kind: ColumnType) -> Array:
    """Rebuilds nested arrays around cast children, because Arrow's own cast drops fields that the target lacks."""
    wanted = arrow_type(kind)
    if array.type == wanted:
        return array
    if t.is_null(array.type):
        return pa.nulls(len(array), wanted)
    match kind:
        case ListOf(element):
            inner = _cast(array.values, element)
            kind_of_list: Any = pa.LargeListArray if t.is_large_list(array.type) else pa.ListArray
            return kind_of_list.from_arrays(array.offsets, inner, mask=_mask(array)).cast(wanted)
        case MapOf(key, value):
            keys, items = _cast(array.keys, key), _cast(array.items, value)
            return pa.MapArray.from_arrays(array.offsets, keys, items, mask=_mask(array)).cast(wanted)
        case Struct(fields):
            given = dict(zip((f.name for f in array.type), array.flatten(), strict=True))
            children = [
                _cast(given[f.name], f.type) if f.name in given else pa.nulls(len(array), arrow_type(f.type))
                for f in fields
            ]
            return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
        case Primitive("uuid") if not _is_text(array.type):
            return uuid_texts(array)
        case Primitive("float") if t.is_float64(array.type):
            return _narrowed(array, wanted)
        case _:
            return array.cast(wanted, safe=True)


def _mask(array: Array) -> Array | None:
    return array.is_null() if array.null_count else None


def _narrowed(array: Array, wanted: Any) -> Array:
    """Checks the result, because Arrow rounds a double to a float silently."""
    narrow = array.cast(wanted, safe=False)
    for part, given in zip(_slices(narrow), _slices(array), strict=True):
        same = pc.or_(pc.equal(part.cast(pa.float64()), given), pc.is_nan(given))
        if pc.all(same).as_py() is False:
            raise pa.ArrowInvalid("a double that a float cannot store")
    return narrow


def _slices(array: Array) -> list[Array]:
    return [array.slice(at, _SLICE_ROWS) for at in range(0, max(1, len(array)), _SLICE_ROWS)]
