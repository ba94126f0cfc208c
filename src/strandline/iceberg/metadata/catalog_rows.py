"""Reads the rows of the embedded catalog, tables and views, even if their metadata cannot be read.

PyIceberg shows only tables, and none without its metadata. To find out which folders belong to somebody takes all
rows.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import quote

from strandline.core.errors import StorageError
from strandline.core.settings import LakeConfig
from strandline.iceberg.metadata.identifier import CATALOG, name_of
from strandline.iceberg.metadata.metadata_peek import BUSY_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class CatalogRow:
    name: str
    metadata: tuple[str, ...]  # its metadata file, and the previous one, as far as the row names them
    is_view: bool
    own: bool  # False for a row of another catalog in the same file


def read_rows(config: LakeConfig) -> list[CatalogRow] | None:
    """None if the catalog is not a local file. Raises StorageError."""
    if config.settings.catalog.kind != "sqlite":
        return None
    path = config.path(config.settings.catalog.path)
    if not path.is_file():
        raise StorageError(f"there is no catalog at {path}", hint="Restore the file.")
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS)) as connection:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")}
            kind = "iceberg_type" if "iceberg_type" in columns else "NULL"
            rows = connection.execute(
                "SELECT catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location,"
                f" {kind} FROM iceberg_tables"
            ).fetchall()
    except sqlite3.DatabaseError as e:
        raise StorageError(f"the catalog {path} cannot be read: {e}") from e
    return [
        CatalogRow(
            name_of((*str(row[1]).split("."), row[2])), tuple(filter(None, row[3:5])), row[5] == "VIEW",
            row[0] == CATALOG,
        )
        for row in rows
    ]  # fmt: skip
