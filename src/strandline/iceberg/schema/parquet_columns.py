"""The columns of a Parquet file, in Iceberg's types."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.core.errors import InputError, SchemaError
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct

if TYPE_CHECKING:
    import pyarrow as pa


def parquet_columns(path: Path) -> tuple[Column, ...]:
    """Raises InputError for a file that is not Parquet, and SchemaError for a type that Iceberg does not have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
        raise InputError(f"{path} is not Parquet: {e}") from e
    return _arrow_columns(schema)


def _arrow_columns(fields: Iterable[pa.Field[Any]], where: str = "") -> tuple[Column, ...]:
    return tuple(Column(f.name, _arrow_type(f.type, f"{where}{f.name}")) for f in fields)


def _arrow_type(kind: pa.DataType, where: str) -> ColumnType:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return Primitive("uuid") if kind.extension_name == "arrow.uuid" else _arrow_type(kind.storage_type, where)
    if isinstance(kind, pa.DictionaryType):
        return _arrow_type(kind.value_type, where)
    if isinstance(kind, pa.MapType):
        return MapOf(_arrow_type(kind.key_type, f"{where}.key"), _arrow_type(kind.item_type, f"{where}.value"))
    if isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return ListOf(_arrow_type(kind.value_type, f"{where}.element"))
    if isinstance(kind, pa.StructType):
        return Struct(_arrow_columns([kind.field(i) for i in range(kind.num_fields)], f"{where}."))
    if isinstance(kind, (pa.Decimal32Type, pa.Decimal64Type, pa.Decimal128Type, pa.Decimal256Type)):
        if kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
            return Primitive(f"decimal({kind.precision},{kind.scale})")
        raise SchemaError(f"column {where}: {kind} has more digits than Iceberg's 38")
    if isinstance(kind, pa.TimestampType):
        return Primitive("timestamptz" if kind.tz else "timestamp")
    if isinstance(kind, pa.FixedSizeBinaryType):
        return Primitive(f"fixed[{kind.byte_width}]")
    for test, name in _arrow_tests():
        if test(kind):
            return Primitive(name)
    raise SchemaError(f"column {where}: there is no type in Iceberg for {kind}", hint="Leave it out, or convert it.")


def _arrow_tests() -> list[tuple[Any, str]]:
    from pyarrow import types as t

    return [
        (t.is_boolean, "boolean"),
        (t.is_uint64, "decimal(20,0)"),
        (lambda k: t.is_int64(k) or t.is_uint32(k), "long"),
        (t.is_integer, "int"),
        (t.is_float64, "double"),
        (t.is_floating, "float"),
        (t.is_date, "date"),
        (t.is_time, "time"),
        (lambda k: t.is_string(k) or t.is_large_string(k) or t.is_string_view(k) or t.is_null(k), "string"),
        (lambda k: t.is_binary(k) or t.is_large_binary(k) or t.is_binary_view(k), "binary"),
    ]
