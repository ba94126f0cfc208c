"""A table of a catalog that is not the lake's own: its metadata, and commits that add rows and properties at once.
Importing this imports PyIceberg.

A commit requires that main is the snapshot that was loaded, so the loaded properties are those that the commit
replaces. A commit moves main even if it adds no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema

from strandline.core.errors import StorageError, StrandlineError
from strandline.core.types import Anchor, SnapshotId
from strandline.iceberg.metadata.identifier import name_of
from strandline.iceberg.metadata.lineage import Links
from strandline.iceberg.metadata.table_metadata import FORMAT_PROPERTY, METRICS_PROPERTY
from strandline.iceberg.pyiceberg.catalog import FORMAT_VERSION, SNAPSHOT_LOADING_MODE
from strandline.iceberg.pyiceberg.errors import describe_error, explained, opening
from strandline.iceberg.pyiceberg.internals import keep_written_files
from strandline.iceberg.pyiceberg.other_catalog import CatalogAddress
from strandline.iceberg.pyiceberg.repeat_commit import repeat_commit
from strandline.iceberg.pyiceberg.schema import columns_of, snapshot_total, to_pyiceberg
from strandline.iceberg.schema.columns import Column, iceberg_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_MANIFEST_MERGE = "commit.manifest-merge.enabled"
_NEW_TABLE = {
    "format-version": str(FORMAT_VERSION),
    METRICS_PROPERTY: "full",
    "write.parquet.compression-codec": "zstd",
    _MANIFEST_MERGE: "true",  # PyIceberg's default differs from that of Iceberg's Java library
    # The commit that drops a metadata file from the table's log also deletes the file.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """One version of a table's metadata."""

    name: str
    uuid: str
    format_version: int
    properties: Mapping[str, str] = field(repr=False)
    columns: tuple[Column, ...]
    schema_id: int
    spec_id: int
    partition_by: tuple[tuple[str, str], ...]  # columns, and how the table is partitioned by them
    data_format: str
    main: SnapshotId | None
    links: Links = field(repr=False)
    rows: int | None  # in main, according to its summary; None if the summary has no total
    table: Table = field(repr=False)  # PyIceberg's own; only this package uses it


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Data files that no commit names yet."""

    schema_id: int
    spec_id: int
    size: int
    files: Sequence[DataFile] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Committed:
    head: Anchor


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The commit has not landed, and never will."""

    why: str


@dataclass(frozen=True, slots=True)
class InDoubt:
    """Load the table to see whether the commit landed."""

    why: str


CommitResult = Committed | NotCommitted | InDoubt


class OtherTable:
    """A table of another catalog. It is pickled and sent to executors, and opens its catalog on first use."""

    def __init__(self, catalog: CatalogAddress, identifier: tuple[str, ...]) -> None:
        self.address = catalog
        self.identifier = identifier
        self._catalog: Catalog | None = None

    def __repr__(self) -> str:
        return f"OtherTable({self.name} in {self.address.place})"

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_catalog": None}

    @property
    def name(self) -> str:
        return name_of(self.identifier)

    def close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def _open(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self.address.open()
            # A catalog that loads only the heads of branches would make history look expired. Set last, to override
            # the server.
            self._catalog.properties[SNAPSHOT_LOADING_MODE] = "all"
        return self._catalog

    def load(self) -> LoadedTable | None:
        """None if there is no such table. Raises StorageError."""
        catalog = self._open()
        with opening(self.name):
            try:
                return _loaded(self.name, catalog.load_table(self.identifier))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def create(self, columns: Sequence[Column]) -> None:
        """Creates the table with optional columns only: its owner may add rows, too, and a required column of the
        dataset may become optional. Does nothing if the table exists."""
        catalog = self._open()
        optional = [Column(c.name, c.type, required=False, doc=c.doc) for c in columns]
        schema = Schema.model_validate(iceberg_schema(optional))
        with explained(self.name), suppress(TableAlreadyExistsError):
            catalog.create_namespace_if_not_exists(self.identifier[:-1])
            catalog.create_table(self.identifier, schema, properties=_NEW_TABLE)

    def add_columns(self, missing: Callable[[LoadedTable], Sequence[Column]]) -> None:
        """Adds the columns that `missing` finds in the loaded table. Raises CommitUnknown."""

        def attempt() -> None:
            loaded = self.load()
            if loaded is not None and (columns := missing(loaded)):
                with loaded.table.update_schema() as update:
                    for column in columns:
                        update.add_column((column.name,), to_pyiceberg(column.type), doc=column.doc)

        repeat_commit(self.name, attempt, "columns could not be added")

    def commit(
        self,
        loaded: LoadedTable,
        files: WrittenFiles | None,
        properties: Callable[[Anchor], Mapping[str, str]],
        summary: Mapping[str, str],
    ) -> CommitResult:
        """Adds the files to main and sets the properties in one commit, if main is as it was loaded. `properties` gets
        the snapshot that the commit creates. Makes one attempt. With a REST catalog, a failure is always in doubt: a
        commit that a gateway sends twice conflicts with itself. Raises StorageError if the commit was not sent."""
        table = loaded.table
        # One attempt: PyIceberg's own retries would repeat properties that were decided on an older version.
        once = {_MANIFEST_MERGE: "true", **table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        try:
            transaction = table.transaction()
            sequence = table.metadata.next_sequence_number()
            with transaction.update_snapshot(snapshot_properties=dict(summary)).merge_append() as append:
                for file in files.files if files is not None else ():
                    append.append_data_file(file)
            head = Anchor(SnapshotId(append.snapshot_id), sequence)
            transaction.set_properties(dict(properties(head)))
            if self.address.is_remote:
                keep_written_files(transaction)
        except Exception as e:  # nothing was sent
            raise StorageError(f"{self.name}: the commit cannot be prepared: {describe_error(e)}") from e
        try:
            transaction.commit_transaction()
        except CommitFailedException as e:
            return InDoubt(describe_error(e)) if self.address.is_remote else NotCommitted(describe_error(e))
        except StrandlineError:
            raise
        except Exception as e:
            return InDoubt(describe_error(e))
        return Committed(head)

    def discard(self, loaded: LoadedTable, files: WrittenFiles) -> None:
        """Removes files that no commit can name any more. Ignores failures: a file that stays is an orphan."""
        for file in files.files:
            with suppress(Exception):
                loaded.table.io.delete(file.file_path)


def _loaded(name: str, table: Table) -> LoadedTable:
    metadata = table.metadata
    main = metadata.current_snapshot_id if metadata.current_snapshot() is not None else None
    return LoadedTable(
        name,
        str(metadata.table_uuid),
        int(metadata.format_version),
        dict(metadata.properties),
        columns_of(table.schema()),
        metadata.current_schema_id,
        metadata.default_spec_id,
        _partition_by(table),
        metadata.properties.get(FORMAT_PROPERTY, "parquet").lower(),
        None if main is None else SnapshotId(main),
        {
            SnapshotId(s.snapshot_id): (
                None if s.parent_snapshot_id is None else SnapshotId(s.parent_snapshot_id),
                s.sequence_number or 0,
            )
            for s in metadata.snapshots
        },
        snapshot_total(table, "total-records"),
        table,
    )


def _partition_by(table: Table) -> tuple[tuple[str, str], ...]:
    schema = table.schema()
    return tuple((schema.find_column_name(f.source_id) or f.name, str(f.transform)) for f in table.spec().fields)
