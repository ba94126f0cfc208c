"""Tables that go from one catalog to another: registered in the new one, renamed in the old one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pyiceberg.exceptions import TableAlreadyExistsError

from strandline.core.errors import RefusedError, StorageError, TableUnfit
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.metadata.metadata_peek import read_rows
from strandline.iceberg.metadata.table_files import TableIdentity
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog

_MOVED = "__moved_"


@dataclass(frozen=True, slots=True)
class TableThatMoves:
    name: str
    location: str  # of its newest metadata file
    stored_as: str  # its name in the old catalog: another one when it was taken out of use


def list_tables(catalog: PyIcebergCatalog, config: LakeConfig, move_id: str | None) -> list[TableThatMoves]:
    """Every table of the embedded catalog. Raises RefusedError for views: their text is not moved."""
    if views := [row.name for row in read_rows(config) or () if row.own and row.is_view]:
        raise RefusedError(
            f"the catalog has views, which cannot move: {', '.join(views)}",
            hint="Drop them, and create them again in the new catalog.",
        )
    ending = None if move_id is None else _ending(move_id)
    return [
        TableThatMoves(
            stored.removesuffix(ending) if ending is not None else stored,
            catalog.load(stored).metadata_location,
            stored,
        )
        for stored in catalog.table_names()
    ]


def register(
    catalog: PyIcebergCatalog, name: str, location: str, expected: TableIdentity, earlier: Collection[str]
) -> None:
    """The new catalog has the table then, as it is in the old one. A table that an earlier attempt registered, at one
    of the `earlier` metadata files, is registered anew. Raises RefusedError if another table has the name."""
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


def take_out(catalog: PyIcebergCatalog, tables: Collection[TableThatMoves], move_id: str) -> Iterator[str]:
    """Renames the tables, so that nobody commits to them any more. Raises StorageError if somebody has committed since
    they were copied; that table then has its name again."""
    for table in tables:
        stored = table.name + _ending(move_id)
        if table.stored_as != stored:
            catalog.rename(table.stored_as, stored)
        if catalog.load(stored).metadata_location != table.location:
            catalog.rename(stored, table.name)
            raise StorageError(
                f"{table.name} was changed while it was copied, by a program that does not ask the ledger",
                hint="Stop that program, and run the migration again: it copies only what is new.",
            )
        yield table.name


def put_back(catalog: PyIcebergCatalog, move_id: str) -> list[str]:
    """Undoes `take_out`; returns the tables that have their names again."""
    ending = _ending(move_id)
    renamed = [stored for stored in catalog.table_names() if stored.endswith(ending)]
    for stored in renamed:
        catalog.rename(stored, stored.removesuffix(ending))
    return [stored.removesuffix(ending) for stored in renamed]


def _identity(catalog: PyIcebergCatalog, location: str) -> TableIdentity:
    document = catalog.read_metadata(location)
    if not isinstance(document, dict):
        raise TableUnfit(f"{location} is no metadata of a table")
    return TableIdentity.of(document)


def _ending(move_id: str) -> str:
    return f"{_MOVED}{move_id[:8]}"
