"""Adapts received rows to the current schema of their table.

A body is checked against the table when it arrives, so usually there is nothing to do. But the table may change before
the rows are ingested. A column that was added is null; one that was widened is cast. If a column is gone, or has
another name or type, its values would be lost: the body does not fit, and waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class BodyUnfit(Exception):
    """Raised in a task. The driver finds it by its class name in Spark's error message."""


MARKER = f"{BodyUnfit.__name__}: "


@dataclass(frozen=True, slots=True)
class SchemaAdapter:
    # the table's columns in Spark's types, nullable at every level: otherwise a cast refuses more than it must
    schema: pa.Schema
    required: tuple[str, ...] = ()

    def fit(self, part: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        if part.schema.equals(self.schema):
            self._check_required(part)
            return part
        for name in part.schema.names:
            if name not in self.schema.names and part.column(name).null_count < part.num_rows:
                raise BodyUnfit(f"rows wait that have a column {name!r}, and the table has none of that name any more")
        fit = pa.record_batch([_column(part, field) for field in self.schema], schema=self.schema)
        self._check_required(fit)
        return fit

    def _check_required(self, fit: pa.RecordBatch) -> None:
        for name in self.required:
            if fit.column(name).null_count:
                raise BodyUnfit(f"rows wait that have no value in {name!r}, which the table requires by now")


def _column(part: pa.RecordBatch, field: pa.Field[Any]) -> Any:
    import pyarrow as pa

    if field.name not in part.schema.names:
        return pa.nulls(part.num_rows, field.type)
    found: Any = part.column(field.name)
    if found.type.equals(field.type):
        return found
    if not may_become(found.type, field.type):
        raise BodyUnfit(f"rows wait whose column {field.name!r} is {found.type}, and in the table it is {field.type}")
    try:
        return found.cast(field.type)
    except pa.ArrowInvalid as e:
        raise BodyUnfit(f"rows wait whose column {field.name!r} does not fit the table any more: {e}") from e


def may_become(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether it is the same type in another representation, or one that Iceberg widens to without loss."""
    import pyarrow.types as t

    if old.equals(new):
        return True
    if _is_text(old):
        return _is_text(new)
    if _is_bytes(old):
        return _is_bytes(new)
    if t.is_int32(old):
        return t.is_int64(new)
    if t.is_float32(old):
        return t.is_float64(new)
    if t.is_decimal(old) and t.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    if t.is_timestamp(old) and t.is_timestamp(new):
        return (old.tz is None) == (new.tz is None) and old.unit == new.unit
    if (t.is_list(old) or t.is_large_list(old)) and t.is_list(new):
        return may_become(old.value_type, new.value_type)
    if t.is_map(old) and t.is_map(new):
        return may_become(old.key_type, new.key_type) and may_become(old.item_type, new.item_type)
    if t.is_struct(old) and t.is_struct(new):
        inner = {f.name: f.type for f in new}
        return all(f.name in inner and may_become(f.type, inner[f.name]) for f in old)
    return False


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow.types as t

    return t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow.types as t

    return t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind)
