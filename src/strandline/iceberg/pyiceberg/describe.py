"""Describes a table in the terms that `dataset create` takes. Importing this imports PyIceberg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.types import INTERNAL_COLUMNS
from strandline.iceberg.pyiceberg.schema import columns_of
from strandline.iceberg.schema.columns import Column

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class TableDescription:
    table_uuid: str
    location: str
    format_version: int
    columns: tuple[Column, ...]  # the user's, without Strandline's own
    partition_by: tuple[str, ...]  # as `--partition-by` takes them: `day(at)`, `bucket(16, id)`, `who`


def describe(table: Table) -> TableDescription:
    return TableDescription(
        str(table.metadata.table_uuid),
        table.location(),
        table.metadata.format_version,
        tuple(c for c in columns_of(table.schema()) if c.name not in INTERNAL_COLUMNS),
        _partition_by(table),
    )


def _partition_by(table: Table) -> tuple[str, ...]:
    found = []
    for field in table.spec().fields:
        column = table.schema().find_column_name(field.source_id) or field.name
        kind, _, number = str(field.transform).rstrip("]").partition("[")
        if kind == "void":
            continue  # the placeholder of a removed partition field, in tables of format 1
        inner = f"{number}, {column}" if number else column
        found.append(column if kind == "identity" else f"{kind}({inner})")
    return tuple(found)
