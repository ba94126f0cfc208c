"""Changes of a dataset's schema that need no rewrite, as values. Names are paths: `a.b` is the field b of the struct
a."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.iceberg.schema.columns import ColumnType, type_text


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


def alteration_text(alteration: Alteration) -> str:
    """The alteration in words: `rename at to moment`."""
    match alteration:
        case AddColumn(name, kind):
            return f"add {name}: {type_text(kind)}"
        case WidenColumn(name, kind):
            return f"widen {name} to {type_text(kind)}"
        case RenameColumn(name, new):
            return f"rename {name} to {new}"
        case DropColumn(name):
            return f"drop {name}"
