"""Checks whether alterations fit a table, and stages them on PyIceberg's `update_schema`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType

from strandline.core.errors import SchemaError
from strandline.core.types import INTERNAL_COLUMNS
from strandline.iceberg.metadata.table_metadata import DELIVER_BY_PROPERTY
from strandline.iceberg.pyiceberg.schema import from_pyiceberg, to_pyiceberg
from strandline.iceberg.schema.alteration import AddColumn, Alteration, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Column, can_widen, check_free, check_name, check_writable, type_text

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update.schema import UpdateSchema


def check_alterations(table: Table, alterations: Sequence[Alteration]) -> None:
    """Raises SchemaError if an alteration does not fit the table. Called before anything is staged."""
    if not alterations:
        raise SchemaError("there is nothing to change")
    schema = table.schema()
    touched: set[str] = set()
    for alteration in alterations:
        _check_not_internal(alteration)
        if alteration.name in touched:
            raise SchemaError(
                f"column {alteration.name}: two changes of one column at once",
                hint="Make them in two commands, one after the other.",
            )
        touched.add(alteration.name)
        match alteration:
            case AddColumn():
                _check_add(schema, alteration, alterations)
            case WidenColumn():
                _check_widen(table, alteration)
            case RenameColumn():
                _check_rename(table, alteration, alterations)
            case DropColumn():
                _check_drop(table, alteration)


def stage_alterations(update: UpdateSchema, alterations: Sequence[Alteration]) -> None:
    for alteration in alterations:
        path = tuple(alteration.name.split("."))
        match alteration:
            case AddColumn(_, kind, doc):
                update.add_column(path, to_pyiceberg(kind), doc=doc)
            case WidenColumn(_, kind):
                update.update_column(path, field_type=to_pyiceberg(kind))
            case RenameColumn(_, new):
                update.rename_column(path, new)
            case DropColumn():
                update.delete_column(path)


def in_effect(schema: Schema, base: Schema, alterations: Sequence[Alteration]) -> bool:
    """Whether `schema` is `base` with the alterations. Decides whether a commit with an unknown outcome has landed."""
    for alteration in alterations:
        match alteration:
            case AddColumn(name, kind) | WidenColumn(name, kind):
                field = _find_field(schema, name)
                if field is None or from_pyiceberg(field.field_type) != kind:
                    return False
            case RenameColumn(name, new):
                old_field = _field(base, name)
                if schema.find_column_name(old_field.field_id) != _sibling(name, new):
                    return False
            case DropColumn(name):
                if schema.find_column_name(_field(base, name).field_id) is not None:
                    return False
    return True


def _check_not_internal(alteration: Alteration) -> None:
    outermost = alteration.name.split(".")[0]
    if outermost.lower() in INTERNAL_COLUMNS:
        raise SchemaError(f"column {outermost} is Strandline's own and cannot be changed")
    if "." not in alteration.name and isinstance(alteration, (AddColumn, RenameColumn)):
        check_free(alteration.new if isinstance(alteration, RenameColumn) else alteration.name)


def _check_add(schema: Schema, alteration: AddColumn, alterations: Sequence[Alteration]) -> None:
    parent, _, name = alteration.name.rpartition(".")
    check_name(name, alteration.name)
    check_writable([Column(alteration.name, alteration.type)])
    _check_free(_fields_in(schema, parent), alteration.name, name, alterations)


def _check_widen(table: Table, alteration: WidenColumn) -> None:
    field = _field(table.schema(), alteration.name)
    old = from_pyiceberg(field.field_type)
    if not can_widen(old, alteration.type):
        raise SchemaError(
            f"column {alteration.name}: {type_text(old)} cannot become {type_text(alteration.type)}",
            hint="Possible without rewriting: int to long, float to double, decimal(P,S) to a larger P. "
            "Otherwise add a column with another name.",
        )
    _check_not_delivered_by(table, alteration.name, "widened: its values would name other partitions")


def _check_rename(table: Table, alteration: RenameColumn, alterations: Sequence[Alteration]) -> None:
    schema = table.schema()
    _field(schema, alteration.name)
    check_name(alteration.new, alteration.new)
    parent = alteration.name.rpartition(".")[0]
    _check_free(_fields_in(schema, parent), alteration.name, alteration.new, alterations)
    _check_not_delivered_by(table, alteration.name, "renamed")


def _check_drop(table: Table, alteration: DropColumn) -> None:
    schema = table.schema()
    field = _field(schema, alteration.name)
    _check_not_delivered_by(table, alteration.name, "dropped")
    dropped = {field.field_id, *_ids_inside(field)}
    for spec in table.specs().values():
        if used := next((f for f in spec.fields if f.source_id in dropped), None):
            raise SchemaError(
                f"column {alteration.name}: the table is, or was, partitioned by it ({used.name})",
                hint="Existing files have its values; the column must stay.",
            )
    if dropped & set(schema.identifier_field_ids):
        raise SchemaError(f"column {alteration.name} identifies the table's rows and must stay")
    _check_not_last(schema, alteration.name)


def _check_not_last(schema: Schema, path: str) -> None:
    parent = path.rpartition(".")[0]
    others = [f for f in _fields_in(schema, parent) if f.name.lower() not in INTERNAL_COLUMNS or parent]
    if len(others) == 1:
        raise SchemaError(f"column {path} is the only one of {parent or 'the dataset'} and must stay")


def _check_not_delivered_by(table: Table, path: str, how: str) -> None:
    if path in json.loads(table.properties.get(DELIVER_BY_PROPERTY, "[]")):
        raise SchemaError(f"column {path}: the dataset is delivered by it, so it cannot be {how}")


def _check_free(siblings: Sequence[NestedField], path: str, name: str, alterations: Sequence[Alteration]) -> None:
    """Spark ignores case in names, so no struct may have two that differ only in case."""
    parent = path.rpartition(".")[0]
    for field in siblings:
        own = f"{parent}.{field.name}" if parent else field.name
        if field.name.lower() == name.lower() and own != path:
            raise SchemaError(f"column {path}: there is a column {own} already")
        if isinstance(next((a for a in alterations if a.name == path), None), AddColumn) and own == path:
            raise SchemaError(f"column {path} exists already")
    for other in alterations:
        if other.name == path or other.name.rpartition(".")[0] != parent:
            continue
        taken = other.new if isinstance(other, RenameColumn) else other.name.rpartition(".")[2]
        if isinstance(other, (AddColumn, RenameColumn)) and taken.lower() == name.lower():
            raise SchemaError(f"column {path}: two of the changes give it the same name, {name}")


def _fields_in(schema: Schema, parent: str) -> Sequence[NestedField]:
    """The fields of the table itself, or of the struct at a path (which may be in a list or be a map's value)."""
    if not parent:
        return schema.fields
    kind = _field(schema, parent).field_type
    if isinstance(kind, ListType):
        kind = kind.element_type
    elif isinstance(kind, MapType):
        kind = kind.value_type
    if not isinstance(kind, StructType):
        raise SchemaError(f"column {parent} is not a struct: it cannot have fields", hint=f"Its type is {kind}.")
    return kind.fields


def _ids_inside(field: NestedField) -> set[int]:
    kind = field.field_type
    inside: tuple[NestedField, ...] = ()
    match kind:
        case StructType():
            inside = kind.fields
        case ListType():
            inside = (kind.element_field,)
        case MapType():
            inside = (kind.key_field, kind.value_field)
    return {i for inner in inside for i in (inner.field_id, *_ids_inside(inner))}


def _find_field(schema: Schema, path: str) -> NestedField | None:
    try:
        return schema.find_field(path)
    except ValueError:
        return None


def _field(schema: Schema, path: str) -> NestedField:
    if (field := _find_field(schema, path)) is None:
        raise SchemaError(
            f"there is no column {path}", hint=f"There are: {', '.join(f.name for f in schema.fields[:20])}."
        )
    return field


def _sibling(path: str, name: str) -> str:
    parent = path.rpartition(".")[0]
    return f"{parent}.{name}" if parent else name
