"""Checks whether a table of another catalog takes a dataset's columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.core.errors import SchemaError
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct, can_widen, type_text

LANE_COLUMN = Column(PARTITION_COLUMN, Primitive("string"))


@dataclass(frozen=True, slots=True)
class IcebergColumnMisfit:
    what: str
    remedy: str


def table_columns(columns: Sequence[Column], *, has_lanes: bool) -> tuple[Column, ...]:
    """The columns that the table must have: those that are delivered, the sequence number first. With `deliver_by`,
    also the logical partition, because the lanes' sequence numbers interleave."""
    number = [c for c in columns if c.name == SEQ_COLUMN]
    if len(number) != 1:
        raise SchemaError(f"the column {SEQ_COLUMN} is not among those that are delivered")
    others = [c for c in columns if c.name not in (SEQ_COLUMN, PARTITION_COLUMN)]
    return (*number, *([LANE_COLUMN] if has_lanes else []), *others)


def takes(there: ColumnType, given: ColumnType) -> bool:
    """Whether a column of the type `there` holds all values of the type `given`, and reads them back as they were."""
    if there == given or can_widen(given, there):
        return True
    match there, given:
        case ListOf(element, must), ListOf(ours, ours_must):
            return takes(element, ours) and (ours_must or not must)
        case MapOf(key, value, must), MapOf(our_key, ours, ours_must):
            return takes(key, our_key) and takes(value, ours) and (ours_must or not must)
        case Struct(fields), Struct(ours_fields):
            known = {f.name: f for f in fields}
            ours_names = {f.name for f in ours_fields}
            return all(f.name in known and _fits(known[f.name], f) for f in ours_fields) and not any(
                f.required and f.name not in ours_names for f in fields
            )
    return False


def _fits(there: Column, given: Column) -> bool:
    return takes(there.type, given.type) and (given.required or not there.required)


def missing_columns(columns: Sequence[Column], there: Sequence[Column]) -> list[Column]:
    names = {c.name for c in there}
    return [c for c in columns if c.name not in names]


def misfits(columns: Sequence[Column], there: Sequence[Column]) -> list[IcebergColumnMisfit]:
    """Why the table does not take these columns; empty if it does."""
    found = [
        IcebergColumnMisfit(f"column {c.name} ({type_text(c.type)}) is not there", f"Add {c.name} {type_text(c.type)}.")
        for c in missing_columns(columns, there)
    ]
    known = {c.name: c for c in there}
    for column in columns:
        target = known.get(column.name)
        if target is None:
            continue
        if not takes(target.type, column.type):
            found.append(
                IcebergColumnMisfit(
                    f"column {column.name} is {type_text(target.type)}, which does not take every "
                    f"{type_text(column.type)}",
                    f"Change {column.name} to {type_text(column.type)}.",
                )
            )
        elif target.required and not column.required:
            what = f"column {column.name} is required, and the dataset's may be null"
            found.append(IcebergColumnMisfit(what, f"Make {column.name} optional."))
    delivered = {c.name for c in columns}
    for target in there:
        if target.required and target.name not in delivered:
            what = f"column {target.name} is required, and is not delivered"
            found.append(IcebergColumnMisfit(what, f"Make {target.name} optional."))
    return found
