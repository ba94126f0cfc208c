"""Converts columns to PyIceberg's schemas and back, and describes a table in the notation of `dataset create`.

Importing this imports PyIceberg: heavy paths only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType

from strandline.core.errors import SchemaError
from strandline.core.text.whole_number import whole_number
from strandline.core.types import INTERNAL_COLUMNS, PARTITION_COLUMN, SEQ_COLUMN
from strandline.iceberg.schema.columns import (
    Column,
    ColumnType,
    Primitive,
    check_columns,
    check_writable,
    from_iceberg,
    iceberg_schema,
    iceberg_type,
    type_from_iceberg,
)
from strandline.iceberg.schema.partitioning import PartitionBy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

_SEQ = Column(SEQ_COLUMN, Primitive("long"), required=True)
_PARTITION = Column(PARTITION_COLUMN, Primitive("string"), required=True)


def dataset_schema(columns: Sequence[Column], deliver_by: Sequence[str]) -> Schema:
    """The user's columns after our own."""
    check_columns(columns)
    check_writable(columns)
    check_deliver_by(columns, deliver_by)
    own = [_SEQ, _PARTITION] if deliver_by else [_SEQ]
    return Schema.model_validate(iceberg_schema([*own, *columns]))


def check_deliver_by(columns: Sequence[Column], deliver_by: Sequence[str]) -> None:
    types = {c.name: c.type for c in columns}
    for name in deliver_by:
        if name not in types:
            raise SchemaError(
                f"--deliver-by names {name}, and there is no such column", hint=_existing_columns(list(types))
            )
        if not isinstance(types[name], Primitive):
            raise SchemaError(f"--deliver-by names {name}, which is nested", hint="Name a column with plain values.")
    if len(set(deliver_by)) != len(deliver_by):
        raise SchemaError("--deliver-by names a column twice")


def partition_spec(schema: Schema, parts: Sequence[PartitionBy]) -> PartitionSpec:
    fields: list[PartitionField] = []
    for field_id, part in enumerate(parts, PARTITION_FIELD_ID_START):
        try:
            source = schema.find_field(part.column)
        except ValueError as e:
            names = [f.name for f in schema.fields]
            raise SchemaError(
                f"--partition-by names {part.column}, and there is no such column", hint=_existing_columns(names)
            ) from e
        transform = parse_transform(part.transform)
        if not transform.can_transform(source.field_type):
            raise SchemaError(f"--partition-by: {part.transform} does not work on {part.column}: {source.field_type}")
        name = part.field_name
        if part.transform != "identity" and name in schema.column_names:
            raise SchemaError(
                f"--partition-by: Iceberg would call this partition {name}, and there is a column with that name",
                hint="Rename the column.",
            )
        if any(f.name == name for f in fields):
            raise SchemaError(f"--partition-by: two partitions would be called {name}")
        fields.append(PartitionField(source.field_id, field_id, transform, name))
    return PartitionSpec(*fields) if fields else UNPARTITIONED_PARTITION_SPEC


def to_pyiceberg(kind: ColumnType) -> IcebergType:
    """The ids inside are placeholders: PyIceberg assigns fresh ones when the column is added."""
    holder = {"type": "struct", "fields": [
        {"id": 1, "name": "column", "required": False, "type": iceberg_type(kind, itertools.count(2))}
    ]}  # fmt: skip
    return Schema.model_validate(holder).fields[0].field_type


def columns_of(schema: Schema) -> tuple[Column, ...]:
    """All columns of a table, Strandline's own included."""
    return from_iceberg(schema.model_dump()["fields"])


def user_columns(schema: Schema) -> tuple[Column, ...]:
    """The columns of a table, without Strandline's own."""
    return tuple(c for c in columns_of(schema) if c.name not in INTERNAL_COLUMNS)


def fields_of_arrow(schema: pa.Schema) -> list[dict[str, Any]]:
    """The user's columns of an Arrow schema with field ids, as in Iceberg's JSON of a schema."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    fields: list[dict[str, Any]] = pyarrow_to_schema(schema, downcast_ns_timestamp_to_us=True).model_dump()["fields"]
    return [f for f in fields if f["name"] not in INTERNAL_COLUMNS]


def from_pyiceberg(kind: IcebergType) -> ColumnType:
    return type_from_iceberg(kind.model_dump())


def _existing_columns(names: Sequence[str]) -> str:
    return f"There are: {', '.join(names[:20])}{' …' if len(names) > 20 else ''}."


_TARGET_BYTES = 512 << 20  # Iceberg's own default


@dataclass(frozen=True, slots=True)
class TableDescription:
    table_uuid: str
    location: str
    format_version: int
    columns: tuple[Column, ...]  # the user's, without Strandline's own
    partition_by: tuple[str, ...]  # as `--partition-by` takes them: `day(at)`, `bucket(16, id)`, `who`
    data_files: int | None  # of the newest snapshot; None if its summary has no totals
    data_bytes: int | None
    surplus_files: int | None  # how many fewer there would be if each had the table's target size; None if unknown


def describe(table: Table) -> TableDescription:
    files, size = snapshot_total(table, "total-data-files"), snapshot_total(table, "total-files-size")
    return TableDescription(
        str(table.metadata.table_uuid),
        table.location(),
        table.metadata.format_version,
        user_columns(table.schema()),
        _partition_by(table),
        files,
        size,
        None if files is None or size is None else surplus_files(files, size, _target_bytes(table)),
    )


def surplus_files(files: int, size: int, target: int) -> int:
    """An estimate from totals. It ignores partitions, each of which needs a file of its own."""
    return max(0, files - max(1, -(-size // target)))


def snapshot_total(table: Table, name: str) -> int | None:
    """A total from the summary of main's newest snapshot. None if the summary lacks it, 0 if there is no snapshot."""
    newest = table.current_snapshot()
    if newest is None:
        return 0
    return whole_number(None if newest.summary is None else newest.summary.additional_properties.get(name))


def _target_bytes(table: Table) -> int:
    return whole_number(table.properties.get("write.target-file-size-bytes")) or _TARGET_BYTES


def _partition_by(table: Table) -> tuple[str, ...]:
    parts = []
    for field in table.spec().fields:
        column = table.schema().find_column_name(field.source_id) or field.name
        transform = str(field.transform)
        if transform != "void":  # the placeholder of a removed partition field, in tables of format 1
            parts.append(PartitionBy(column, transform).spelled)
    return tuple(parts)
