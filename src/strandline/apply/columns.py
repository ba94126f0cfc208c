"""What to change so that a dataset has the columns of its declaration, and what no change achieves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strandline.iceberg.schema.alteration import AddColumn, Alteration, DropColumn, WidenColumn
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Struct, can_widen, type_text


@dataclass(frozen=True, slots=True)
class Impossible:
    """A difference that no change of the table can remove."""

    column: str
    reason: str
    hint: str | None = None


DeclaredChange = Alteration | Impossible


def compare_columns(found: Sequence[Column], wanted: Sequence[Column]) -> list[DeclaredChange]:
    """Each column by its path: `a.b` is the field b of a. The order of columns does not count, and neither do docs:
    nothing can change them."""
    return list(_fields(found, wanted, ""))


def _fields(found: Sequence[Column], wanted: Sequence[Column], prefix: str) -> Iterator[DeclaredChange]:
    there = {c.name: c for c in found}
    asked = {c.name: c for c in wanted}
    in_lower_case = {c.name.lower(): c.name for c in found}
    for name, column in asked.items():
        path = f"{prefix}{name}"
        if name in there:
            yield from _column(path, there[name], column)
        elif (other := in_lower_case.get(name.lower())) is not None:
            hint = f"Rename it first: `strandline dataset alter DATASET --rename {prefix}{other}:{name}`."
            yield Impossible(path, f"there is {prefix}{other}, which differs only in upper and lower case", hint)
        elif column.required:
            yield Impossible(path, "a new column of a dataset that is there is optional: old rows have no value for it")
        else:
            yield AddColumn(path, column.type, column.doc)
    yield from (DropColumn(f"{prefix}{name}") for name in there if name not in asked and name.lower() not in {
        a.lower() for a in asked
    })  # fmt: skip


def _column(path: str, found: Column, wanted: Column) -> Iterator[DeclaredChange]:
    if found.required != wanted.required:
        yield Impossible(path, f"it is {_need(found.required)}, and cannot become {_need(wanted.required)}")
    yield from _type(path, found.type, wanted.type)


def _need(required: bool) -> str:
    return "required" if required else "optional"


def _type(path: str, found: ColumnType, wanted: ColumnType) -> Iterator[DeclaredChange]:
    match found, wanted:
        case Struct(before), Struct(after):
            yield from _fields(before, after, f"{path}.")
        case ListOf(before, required), ListOf(after, asked) if required == asked:
            yield from _type(f"{path}.element", before, after)
        case MapOf(key, before, required), MapOf(other_key, after, asked) if required == asked and key == other_key:
            yield from _type(f"{path}.value", before, after)
        case _ if found == wanted:
            return
        case _ if can_widen(found, wanted):
            yield WidenColumn(path, wanted)
        case _:
            yield Impossible(
                path,
                f"{type_text(found)} cannot become {type_text(wanted)}",
                "Possible without losing values: int to long, float to double, decimal(P,S) to a larger P. Otherwise "
                "add a column with another name.",
            )
