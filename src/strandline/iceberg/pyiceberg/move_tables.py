"""Tables that go from one catalog to another: registered in the new one, renamed in the old one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pyiceberg.exceptions import TableAlreadyExistsError

from strandline.core.errors import RefusedError, StorageError, TableUnfit
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.metadata.identifier import CATALOG, name_of, parse_identifier
from strandline.iceberg.metadata.metadata_peek import read_rows
from strandline.iceberg.metadata.table_files import TableIdentity
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog

_MOVED = "__moved_"
_ID_CHARS = 8  # of the migration's id
_TAKEN_OUT = re.compile(rf"(?P<name>.+){_MOVED}(?P<id>[0-9a-f]{{8}})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableThatMoves:
    name: str
    location: str  # of its newest metadata file
    stored_as: str  # its name in the old catalog: another one when it was taken out of use


def list_tables(catalog: PyIcebergCatalog, config: LakeConfig, move_id: str | None) -> list[TableThatMoves]:
    """Every table of the embedded catalog. Raises RefusedError for views, whose text is not moved, and for what would
    be left behind."""
    rows = read_rows(config) or []
    if others := [row.name for row in rows if not row.own]:
        raise RefusedError(
            f"the catalog's file has tables under another catalog name, which would stay: {', '.join(others)}",
            hint=f'Drop them, or register them in the catalog "{CATALOG}".',
        )
    if views := [row.name for row in rows if row.own and row.is_view]:
        raise RefusedError(
            f"the catalog has views, which cannot move: {', '.join(views)}",
            hint="Drop them, and create them again in the new catalog.",
        )
    found: list[TableThatMoves] = []
    for stored in catalog.table_names():
        name, ended = _as_it_was(stored)
        if ended is not None and (move_id is None or ended != move_id[:_ID_CHARS]):
            raise RefusedError(
                f"the table {stored} has the name that a migration which was called off gave it",
                hint="`strandline migrate --abort` gives it its name again. Drop it, if there is another table of that "
                "name.",
            )
        found.append(TableThatMoves(name, catalog.load(stored).metadata_location, stored))
    return found


def register(
    catalog: PyIcebergCatalog, name: str, location: str, expected: TableIdentity, earlier: Collection[str]
) -> None:
    """Registers the table in the new catalog, as it is in the old one. A table that an earlier attempt registered, at
    one of the `earlier` metadata files, is registered again. Raises RefusedError if another table has the name."""
    try:
        catalog.register(name, location)
    except TableAlreadyExistsError:
        there = catalog.load(name)
        found = _identity(catalog, there.metadata_location)
        if found == expected:
            return
        if found.uuid != expected.uuid or there.metadata_location not in earlier:
            raise RefusedError(
                f"the new catalog has another table {name}, at {there.metadata_location}",
                hint="Drop it there, or name a catalog that has no table of this name.",
            ) from None
        catalog.drop(name)
        catalog.register(name, location)
    found = _identity(catalog, catalog.load(name).metadata_location)
    if found != expected:
        raise StorageError(
            f"the new catalog did not register {name} as it is: snapshots, branches, tags, properties or uuid differ",
            hint="Check the catalog's own settings, drop the table there, and run the migration again.",
        )


def take_out(
    catalog: PyIcebergCatalog, tables: Collection[TableThatMoves], move_id: str, check: Callable[[], None]
) -> Iterator[str]:
    """Renames the tables, so that nobody commits to them any more. `check` comes before each. Raises StorageError if
    somebody has committed since they were copied; that table then has its name again."""
    for table in tables:
        check()
        stored = _taken_out(table.name, move_id)
        if table.stored_as != stored:
            catalog.rename(table.stored_as, stored)
        if catalog.load(stored).metadata_location != table.location:
            catalog.rename(stored, table.name)
            raise StorageError(
                f"{table.name} was changed while it was copied, by a program that does not ask the ledger",
                hint="Stop that program, and run the migration again: it copies only what is new.",
            )
        yield table.name


def put_back(catalog: PyIcebergCatalog, move_id: str | None) -> list[str]:
    """Undoes `take_out` of this migration, or of all; returns the tables that have their names again. Raises
    RefusedError if another table has one of the names by now."""
    there = catalog.table_names()
    renamed = {
        stored: name
        for stored, (name, ended) in ((stored, _as_it_was(stored)) for stored in there)
        if ended is not None and (move_id is None or ended == move_id[:_ID_CHARS])
    }
    for stored, name in renamed.items():
        if name in there:
            raise RefusedError(
                f"the table {stored} cannot have its name again: there is another table {name}",
                hint="Drop or rename that one, and run `strandline migrate --abort` again.",
            )
    for stored, name in renamed.items():
        catalog.rename(stored, name)
    return list(renamed.values())


def drop_moved(catalog: PyIcebergCatalog, move_id: str) -> None:
    """The catalog forgets what `take_out` renamed. Files stay."""
    for stored in catalog.table_names():
        if _as_it_was(stored)[1] == move_id[:_ID_CHARS]:
            catalog.drop(stored)


def _identity(catalog: PyIcebergCatalog, location: str) -> TableIdentity:
    document = catalog.read_metadata(location)
    if not isinstance(document, dict):
        raise TableUnfit(f"{location} is no metadata of a table")
    return TableIdentity.of(document)


def _taken_out(name: str, move_id: str) -> str:
    *namespace, last = parse_identifier(name)
    return name_of((*namespace, f"{last}{_MOVED}{move_id[:_ID_CHARS]}"))


def _as_it_was(stored: str) -> tuple[str, str | None]:
    """The name of the table, and of which migration it has an ending, if any."""
    *namespace, last = parse_identifier(stored)
    if (found := _TAKEN_OUT.fullmatch(last)) is None:
        return stored, None
    return name_of((*namespace, found["name"])), found["id"]
