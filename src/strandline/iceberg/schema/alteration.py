"""Changes of a dataset's schema that need no rewrite, as values. Names are paths: `a.b` is the field b of a."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.iceberg.schema.columns import ColumnType


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Always optional: existing rows have no value for it."""

    name: str
    type: ColumnType
    doc: str | None = None


@dataclass(frozen=True, slots=True)
class WidenColumn:
    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class RenameColumn:
    name: str
    new: str  # the last part only: a column does not move between structs


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str


Alteration = AddColumn | WidenColumn | RenameColumn | DropColumn
