"""Reads a table's metadata without PyIceberg, for commands that must answer within a second.

The embedded catalog is a SQLite file with one row per table or view. The row names the newest metadata file (JSON).
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from strandline.core.errors import StorageError
from strandline.core.retry import RetryPolicy
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.metadata.identifier import CATALOG, full_name, name_of, parse_identifier
from strandline.iceberg.metadata.lineage import Links, links_of
from strandline.iceberg.metadata.table_metadata import SnapshotView, TableView, parse_view

_BUSY_TIMEOUT_SECONDS = 60
_GZIP_MAGIC = b"\x1f\x8b"
_LOCAL = re.compile(r"(?:file:(?://(?:localhost)?/*(?=/))?)?(?=/(?!/))", re.IGNORECASE)
_REPLACED_MEANWHILE = RetryPolicy(0.0, attempts_max=3)
# What a damaged file may raise: it cannot be decompressed, decoded or parsed, or lacks what all tables have.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    StopIteration,
    EOFError,
    RecursionError,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class TableGlance:
    metadata_location: str
    view: TableView
    # live rows of main; None if unknown, because of delete files or a writer that keeps no totals
    row_count: int | None
    history: tuple[SnapshotView, ...]  # main and its ancestors that are not expired, newest first


def is_glanceable(config: LakeConfig) -> bool:
    """Whether catalog and warehouse are local files, so that `read_glance` can read them."""
    return config.settings.catalog.kind == "sqlite" and config.warehouse_folder is not None


def read_glance(config: LakeConfig, name: str) -> TableGlance | None:
    """None if the catalog has no such table, or if catalog or table are not local files. Raises StorageError."""
    if not is_glanceable(config):
        return None
    for attempt in _REPLACED_MEANWHILE.attempts():
        location = read_locations(config).get(parse_identifier(name))
        if location is None or (path := local_path(location)) is None:
            return None
        try:
            return glance_at(name, location, path)
        except FileNotFoundError as e:
            # If another commit came in between, the catalog names a newer file now.
            if attempt.is_last:
                raise StorageError(
                    f"{full_name(name)}: the catalog names a metadata file that does not exist: {location}",
                    hint="Someone deleted the file. Restore it, or an older copy of the catalog.",
                ) from e
    raise AssertionError("unreachable")


def glance_at(name: str, location: str, path: Path) -> TableGlance:
    """Reads the table's metadata file. Raises FileNotFoundError, or StorageError for a damaged file."""
    try:
        return glance_of(location, path.read_bytes())
    except FileNotFoundError:
        raise
    except _DAMAGE as e:
        raise StorageError(
            f"{full_name(name)}: its metadata {path} cannot be read: {e}",
            hint="The file is damaged. Restore the file, or an older copy of the catalog.",
        ) from e


def read_locations(config: LakeConfig) -> dict[tuple[str, ...], str]:
    """The metadata files of all tables of an embedded catalog, by identifier. Raises StorageError."""
    catalog = config.path(config.settings.catalog.path)
    if not catalog.is_file():
        return {}
    query = "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ?"
    with _catalog_file(catalog) as connection:
        try:
            rows = connection.execute(query, (CATALOG,)).fetchall()
        except sqlite3.OperationalError as e:
            if "no such table" in str(e):
                return {}
            raise
    return {(*str(namespace).split("."), name): location for namespace, name, location in rows if location is not None}


def check_catalog_file(config: LakeConfig) -> None:
    """Raises StorageError unless the embedded catalog can be read. Reads one row."""
    path = config.path(config.settings.catalog.path)
    if not path.is_file():
        raise StorageError(f"there is no catalog at {path}", hint="Restore the file.")
    with _catalog_file(path) as connection:
        connection.execute("SELECT 1 FROM iceberg_tables LIMIT 1").fetchall()


@contextmanager
def _catalog_file(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the catalog for reading. Raises StorageError."""
    try:
        uri = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_SECONDS)) as connection:
            yield connection
    except sqlite3.DatabaseError as e:
        raise StorageError(f"the catalog {path} cannot be read: {e}") from e


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """A table or a view of the embedded catalog. PyIceberg lists only tables whose metadata it can read."""

    name: str
    metadata: tuple[str, ...]  # its metadata file and the previous one, if the row names them
    is_view: bool
    own: bool  # False for a row of another catalog in the same file


def read_rows(config: LakeConfig) -> list[CatalogRow] | None:
    """All rows of the catalog, even if their metadata cannot be read. None if the catalog is not a local file. Raises
    StorageError."""
    if config.settings.catalog.kind != "sqlite":
        return None
    path = config.path(config.settings.catalog.path)
    if not path.is_file():
        raise StorageError(f"there is no catalog at {path}", hint="Restore the file.")
    with _catalog_file(path) as connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")}
        kind = "iceberg_type" if "iceberg_type" in columns else "NULL"
        rows = connection.execute(
            "SELECT catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location,"
            f" {kind} FROM iceberg_tables"
        ).fetchall()
    return [
        CatalogRow(
            name_of((*str(row[1]).split("."), row[2])), tuple(filter(None, row[3:5])), row[5] == "VIEW",
            row[0] == CATALOG,
        )
        for row in rows
    ]  # fmt: skip


def sqlite_uri(path: str) -> str:
    """The catalog's address for PyIceberg. The escaped characters would be read as parts of the URL; spaces and accents
    would not."""
    escaped = path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    return f"sqlite:///{escaped}?timeout={_BUSY_TIMEOUT_SECONDS}"


def local_path(location: str) -> Path | None:
    """None if the location is not a local file, or not an absolute path."""
    # Iceberg's writers take a location literally: `%20` in it is no escape.
    prefix = _LOCAL.match(location)
    return None if prefix is None else Path(location[prefix.end() :])


def earlier_links(view: TableView) -> Iterator[Links]:
    """The links in earlier metadata files, newest file first. Stops at a file that is not local or cannot be read."""
    for location in reversed(view.metadata_log):
        if (path := local_path(location)) is None:
            return
        try:
            yield links_of(glance_of(location, path.read_bytes()).view)
        except _DAMAGE:
            return


def glance_of(location: str, content: bytes) -> TableGlance:
    """Parses the bytes of a metadata file."""
    view = parse_view(_unpacked(content).decode("utf-8"))
    history = tuple(view.ancestors(view.main))
    return TableGlance(location, view, _row_count(view, history), history)


def metadata_document(content: bytes) -> object:
    """The JSON document in the bytes of a metadata file. Raises ValueError or OSError."""
    document: object = json.loads(_unpacked(content))
    return document


def _unpacked(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content


def _row_count(view: TableView, history: tuple[SnapshotView, ...]) -> int | None:
    if view.main is None:
        return 0
    if not history:
        return None
    summary = history[0].summary
    if summary.get("total-delete-files") != "0" or "total-records" not in summary:
        return None
    return int(summary["total-records"])
