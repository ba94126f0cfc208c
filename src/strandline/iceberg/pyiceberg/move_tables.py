"""Moves tables from one catalog to another: registers them in the new one, and renames them in the old one."""

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
_RENAMED = re.compile(rf"(?P<name>.+){_MOVED}(?P<id>[0-9a-f]{{8}})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableThatMoves:
    name: str
    location: str  # of its newest metadata file
    stored_as: str  # its name in the old catalog: another one once `take_out` has renamed it


def list_tables(catalog: PyIcebergCatalog, config: LakeConfig, move_id: str | None) -> list[TableThatMoves]:
    """All tables of the embedded catalog. Raises RefusedError for what cannot move: views, tables of another catalog in
    the same file, and tables that another migration has renamed."""
    rows = read_rows(config) or []
    if others := [row.name for row in rows if not row.own]:
        raise RefusedError(
            f"the catalog's file has tables of another catalog, which would be left behind: {', '.join(others)}",
            hint=f'Drop them, or register them in the catalog "{CATALOG}".',
        )
    if views := [row.name for row in rows if row.own and row.is_view]:
        raise RefusedError(
            f"the catalog has views, which cannot move: {', '.join(views)}",
            hint="Drop them, and create them again in the new catalog.",
        )
    tables: list[TableThatMoves] = []
    for stored in catalog.table_names():
        name, renamed_by = _original_name(stored)
        if renamed_by is not None and (move_id is None or renamed_by != move_id[:_ID_CHARS]):
            raise RefusedError(
                f"the table {stored} was renamed by a migration that was called off",
                hint="`strandline migrate --abort` gives it its old name again. If another table has that name, drop "
                "this one.",
            )
        tables.append(TableThatMoves(name, catalog.load(stored).metadata_location, stored))
    return tables


def register(
    catalog: PyIcebergCatalog, name: str, location: str, expected: TableIdentity, earlier: Collection[str]
) -> None:
    """Registers the table in the new catalog as it is in the old one. If an earlier attempt registered it at one of the
    `earlier` metadata files, it is registered again. Raises RefusedError if another table has the name, and
    StorageError if the new catalog changes the table."""
    try:
        catalog.register(name, location)
    except TableAlreadyExistsError:
        existing = catalog.load(name)
        identity = _identity(catalog, existing.metadata_location)
        if identity == expected:
            return
        if identity.uuid != expected.uuid or existing.metadata_location not in earlier:
            raise RefusedError(
                f"the new catalog has another table {name}, at {existing.metadata_location}",
                hint="Drop it there, or name a catalog that has no table of this name.",
            ) from None
        catalog.drop(name)
        catalog.register(name, location)
    if _identity(catalog, catalog.load(name).metadata_location) != expected:
        raise StorageError(
            f"the new catalog did not register {name} as it is: snapshots, branches, tags, properties or uuid differ",
            hint="Check the catalog's own settings, drop the table there, and run the migration again.",
        )


def take_out(
    catalog: PyIcebergCatalog, tables: Collection[TableThatMoves], move_id: str, check: Callable[[], None]
) -> Iterator[str]:
    """Renames the tables in the old catalog, so that nobody commits to them any more, and yields their old names.
    `check` is called before each one. Raises StorageError if somebody has committed to a table since it was copied;
    that table has its name again."""
    for table in tables:
        check()
        stored = _name_when_out(table.name, move_id)
        if table.stored_as != stored:
            catalog.rename(table.stored_as, stored)
        if catalog.load(stored).metadata_location != table.location:
            catalog.rename(stored, table.name)
            raise StorageError(
                f"{table.name} was changed while it was copied, by a program that does not use the ledger",
                hint="Stop that program, and run the migration again: it copies only the files that are new.",
            )
        yield table.name


def put_back(catalog: PyIcebergCatalog, move_id: str | None) -> list[str]:
    """Undoes `take_out` of this migration, or of all migrations. Returns the tables that have their names again. Raises
    RefusedError if another table has one of the names by now."""
    present = catalog.table_names()
    renamed = {
        stored: name
        for stored, (name, renamed_by) in ((stored, _original_name(stored)) for stored in present)
        if renamed_by is not None and (move_id is None or renamed_by == move_id[:_ID_CHARS])
    }
    for stored, name in renamed.items():
        if name in present:
            raise RefusedError(
                f"the table {stored} cannot get its old name again: there is another table {name}",
                hint="Drop or rename that one, and run `strandline migrate --abort` again.",
            )
    for stored, name in renamed.items():
        catalog.rename(stored, name)
    return list(renamed.values())


def drop_moved(catalog: PyIcebergCatalog, move_id: str) -> None:
    """Removes from the catalog the tables that `take_out` renamed. Their files stay."""
    for stored in catalog.table_names():
        if _original_name(stored)[1] == move_id[:_ID_CHARS]:
            catalog.drop(stored)


def _identity(catalog: PyIcebergCatalog, location: str) -> TableIdentity:
    document = catalog.read_metadata(location)
    if not isinstance(document, dict):
        raise TableUnfit(f"{location} is not a table's metadata file")
    return TableIdentity.of(document)


def _name_when_out(name: str, move_id: str) -> str:
    *namespace, last = parse_identifier(name)
    return name_of((*namespace, f"{last}{_MOVED}{move_id[:_ID_CHARS]}"))


def _original_name(stored: str) -> tuple[str, str | None]:
    """The table's name before it was renamed, and the id of the migration that renamed it, shortened. None if no
    migration did."""
    *namespace, last = parse_identifier(stored)
    if (match := _RENAMED.fullmatch(last)) is None:
        return stored, None
    return name_of((*namespace, match["name"])), match["id"]
