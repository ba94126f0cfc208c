"""The catalog and its tables without a JVM, through PyIceberg. Importing this imports PyIceberg: heavy paths only.

Spark's session has the same catalog under the same name, `lake`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchViewError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
)
from pyiceberg.io import load_file_io
from pyiceberg.table import StaticTable

from strandline.core.errors import CommitUnknown, RefusedError, StorageError
from strandline.core.retry import RetryPolicy
from strandline.core.secrets import resolve_catalog_options
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.metadata.adoption import own_properties
from strandline.iceberg.metadata.identifier import CATALOG, check_new_name, full_name, name_of, parse_identifier
from strandline.iceberg.metadata.metadata_peek import TableGlance, glance_of, metadata_document, sqlite_uri
from strandline.iceberg.metadata.table_metadata import METRICS_PROPERTY, TableView
from strandline.iceberg.pyiceberg.alter import check_alterations, in_effect, stage_alterations
from strandline.iceberg.pyiceberg.errors import explained, opening
from strandline.iceberg.pyiceberg.internals import REST_ANSWER_SECONDS_MAX, rest_catalog
from strandline.iceberg.pyiceberg.repeat_commit import repeat_commit
from strandline.iceberg.pyiceberg.schema import (
    TableDescription,
    columns_of,
    dataset_schema,
    describe,
    partition_spec,
    user_columns,
)
from strandline.iceberg.schema.alteration import Alteration
from strandline.iceberg.schema.columns import Column
from strandline.iceberg.schema.partitioning import parse_partition_by
from strandline.storage.s3_settings import S3Settings, send_no_trailers

if TYPE_CHECKING:
    from pyiceberg.table import Table

OPEN_ATTEMPTS_MAX = 5
FORMAT_VERSION = 2
SNAPSHOT_LOADING_MODE = "snapshot-loading-mode"

NEW_TABLE_PROPERTIES = {
    METRICS_PROPERTY: "full",
    # Small row groups: reading a few new rows then reads little of a compacted file.
    "write.parquet.row-group-size-bytes": str(16 << 20),
    # A file is one split: a larger file would cost a task and a read of its footer for each split without new rows.
    "write.target-file-size-bytes": str(96 << 20),
    # Iceberg's Java library sets this on tables that it creates itself; on others it falls back to gzip.
    "write.parquet.compression-codec": "zstd",
    # The task that stamped the rows writes them; a shuffle would only cost time.
    "write.distribution-mode": "none",
    # Blocks are published while others commit, so a commit may lose a few times in a row.
    "commit.retry.num-retries": "20",
    "commit.retry.min-wait-ms": "50",
    "commit.retry.max-wait-ms": "5000",
    # The commit that drops a metadata file from the table's log also deletes the file. Otherwise each ingest would
    # leave three unreferenced files, which the reconciler would report.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def open_catalog(config: LakeConfig, *, answer_seconds_max: float = REST_ANSWER_SECONDS_MAX) -> PyIcebergCatalog:
    """`answer_seconds_max`: how long to wait for an answer of a REST catalog. Raises StorageError."""
    remote = config.settings.catalog.kind == "rest"
    for attempt in RetryPolicy(0.0, attempts_max=OPEN_ATTEMPTS_MAX).attempts():
        try:
            with explained("the catalog"):
                options = _catalog_options(config)
                if remote:
                    catalog = rest_catalog(CATALOG, options, answer_seconds_max=answer_seconds_max)
                else:
                    catalog = load_catalog(CATALOG, **options)
            break
        except StorageError as e:
            # Two processes that open a new lake at once both create the catalog's tables; the second then finds them.
            # SQLite has only its general code for that; a locked or damaged file has others.
            code = getattr(getattr(e.__cause__, "orig", None), "sqlite_errorname", None)
            if attempt.is_last or code != "SQLITE_ERROR":
                raise
    # A catalog that loads only the heads of branches would make other live snapshots look expired. Set last, to
    # override the server.
    catalog.properties[SNAPSHOT_LOADING_MODE] = "all"
    return PyIcebergCatalog(catalog, remote=remote)


def _catalog_options(config: LakeConfig) -> dict[str, str]:
    settings = config.settings
    files = (
        "pyiceberg.io.pyarrow.PyArrowFileIO"
        if settings.warehouse.is_s3
        else "strandline.iceberg.pyiceberg.local_files.LocalFiles"
    )
    options = {"warehouse": config.warehouse_url, "py-io-impl": files}
    if settings.warehouse.is_s3:
        send_no_trailers(settings.warehouse)
        options |= S3Settings.of_warehouse(settings.warehouse).pyiceberg_options()
    if settings.catalog.kind == "rest":
        further = resolve_catalog_options(settings.catalog.options)
        return options | {"type": "rest", "uri": settings.catalog.uri or ""} | further
    path = config.path(settings.catalog.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return options | {"type": "sql", "uri": sqlite_uri(str(path))}


def _glance(table: Table) -> TableGlance:
    return glance_of(table.metadata_location, table.io.new_input(table.metadata_location).open().read())


class PyIcebergCatalog:
    def __init__(self, catalog: Catalog, *, remote: bool) -> None:
        self._catalog = catalog
        self.is_remote = remote

    def close(self) -> None:
        self._catalog.close()

    def exists(self, name: str) -> bool:
        with explained(full_name(name)):
            return self._catalog.table_exists(parse_identifier(name))

    def load(self, name: str) -> Table:
        with opening(full_name(name)):
            return self._catalog.load_table(parse_identifier(name))

    def load_with_view(self, name: str) -> tuple[Table, TableView]:
        """The table and its view, of the same version."""
        table = self.load(name)
        with opening(full_name(name)):
            return table, _glance(table).view

    def columns(self, name: str) -> tuple[Column, ...]:
        """All columns of the table, Strandline's own included."""
        return columns_of(self.load(name).schema())

    def open_metadata(self, location: str) -> Table:
        """Opens a table from its metadata file. The catalog need not have it."""
        with opening(location):
            return StaticTable.from_metadata(location, self._catalog.properties)

    def read_metadata(self, location: str) -> object:
        """The document in a metadata file of a table or a view, unchecked. Raises TableUnfit or StorageError."""
        with opening(location):
            with load_file_io(self._catalog.properties, location).new_input(location).open() as file:
                content = file.read()
            return metadata_document(content)

    def glance(self, name: str, known: Mapping[str, TableGlance] | None = None) -> TableGlance | None:
        """Like `metadata_peek.read_glance`, for catalogs and warehouses that are not local files. `known` are results
        of earlier calls, by metadata file: such a file is not read again."""
        if not self.exists(name):
            return None
        table = self.load(name)
        if known is not None and (unchanged := known.get(table.metadata_location)) is not None:
            return unchanged
        with explained(full_name(name)):
            return _glance(table)

    def ping(self) -> None:
        """Raises StorageError unless the catalog answers."""
        with explained("the catalog"):
            self._catalog.list_namespaces()

    def table_names(self) -> list[str]:
        with explained("the catalog"):
            names = [name_of(i) for namespace in self._namespaces(()) for i in self._catalog.list_tables(namespace)]
        return sorted(names)

    def view_locations(self) -> dict[str, str | None]:
        """The locations of all views of a REST catalog, by name; None if a location is unknown. PyIceberg does not
        support views of other catalogs."""
        with explained("the catalog"):
            names = [i for namespace in self._namespaces(()) for i in self._catalog.list_views(namespace)]
        locations: dict[str, str | None] = {}
        for name in sorted(names):
            try:
                locations[name_of(name)] = self._catalog.load_view(name).metadata.location
            except NoSuchViewError:
                continue  # dropped since it was listed
            except Exception:
                locations[name_of(name)] = None  # a server or a damaged file may raise anything
        return locations

    def _namespaces(self, parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for namespace in self._catalog.list_namespaces(parent):
            yield namespace
            yield from self._namespaces(namespace)

    def create_dataset_table(
        self,
        name: str,
        columns: Sequence[Column],
        *,
        lake_id: str,
        epoch: int,
        deliver_by: Sequence[str] = (),
        partition_by: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Creates a table with Strandline's own columns, which are required, and then the user's. `properties` are set
        besides our own. Raises RefusedError if the table exists."""
        check_new_name(name)
        schema = dataset_schema(columns, deliver_by)
        spec = partition_spec(schema, parse_partition_by(partition_by) if partition_by is not None else ())
        wanted = NEW_TABLE_PROPERTIES | dict(properties or {}) | own_properties(lake_id, epoch, deliver_by)
        wanted["format-version"] = str(FORMAT_VERSION)
        identifier = parse_identifier(name)
        try:
            with explained(full_name(name)):
                self._ensure_namespace(identifier[:-1])
                return self._catalog.create_table(identifier, schema, partition_spec=spec, properties=wanted)
        except TableAlreadyExistsError as e:
            raise RefusedError(
                f"a table {full_name(name)} exists already",
                hint="`strandline dataset adopt` makes a dataset of an existing table.",
            ) from e

    def set_properties(self, name: str, wanted: Mapping[str, str]) -> None:
        def attempt() -> Table:
            table = self.load(name)
            if stale := {key: value for key, value in wanted.items() if table.properties.get(key) != value}:
                with self._committing(), table.transaction() as transaction:
                    transaction.set_properties(stale)
            return table

        repeat_commit(full_name(name), attempt)

    def _ensure_namespace(self, namespace: tuple[str, ...]) -> None:
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
        except Exception:  # a SQL catalog raises the database's error if another process created it first
            if not self._catalog.namespace_exists(namespace):
                raise

    def drop(self, name: str) -> None:
        """Removes the table from the catalog; its files stay."""
        with explained(full_name(name)):
            self._catalog.drop_table(parse_identifier(name))

    def register(self, name: str, location: str) -> Table:
        """Adds a table whose metadata file is at `location` to the catalog. Raises TableAlreadyExistsError."""
        with explained(full_name(name)):
            return self._catalog.register_table(parse_identifier(name), location)

    def rename(self, name: str, to: str) -> None:
        """Renames the table. From then on, commits under the old name fail."""
        with explained(full_name(name)):
            self._catalog.rename_table(parse_identifier(name), parse_identifier(to))

    def namespaces(self) -> dict[tuple[str, ...], dict[str, str]]:
        """All namespaces, with their properties."""
        with explained("the catalog"):
            return {n: dict(self._catalog.load_namespace_properties(n)) for n in self._namespaces(())}

    def ensure_namespace(self, namespace: tuple[str, ...], properties: Mapping[str, str]) -> None:
        with explained("the catalog"):
            if not self._catalog.namespace_exists(namespace):
                self._catalog.create_namespace_if_not_exists(namespace, dict(properties))

    def preview_alter(self, name: str, alterations: Sequence[Alteration]) -> TableDescription:
        """The table as `alter` would leave it. Commits nothing. Raises SchemaError."""
        table = self.load(name)
        check_alterations(table, alterations)
        staged = table.transaction()
        with staged.update_schema() as update:
            stage_alterations(update, alterations)
        return replace(describe(table), columns=user_columns(staged.table_metadata.schema()))

    def alter(self, name: str, alterations: Sequence[Alteration]) -> Table:
        """Commits all alterations at once, or none. Raises SchemaError or CommitUnknown."""
        base = self.load(name).schema()
        sent = unknown = False

        def attempt() -> Table:
            nonlocal base, sent, unknown
            table = self.load(name)
            if sent and table.schema() != base:
                if in_effect(table.schema(), base, alterations):
                    return table
                if unknown:
                    raise CommitUnknown(
                        f"{full_name(name)}: the catalog's answer to the change was lost, and someone else has changed "
                        "the schema since",
                        hint=f"Check the columns with `strandline dataset show {full_name(name)}`, "
                        "then repeat the changes that are missing.",
                    )
            base = table.schema()
            check_alterations(table, alterations)
            try:
                with self._committing(), table.update_schema() as update:
                    stage_alterations(update, alterations)
            except CommitStateUnknownException:
                sent = unknown = True
                raise
            except CommitFailedException:
                sent = self.is_remote  # a request that a gateway sent twice conflicts with itself
                raise
            return table

        return repeat_commit(full_name(name), attempt)

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Over a network, a commit has an unknown outcome if no answer came, or if a gateway gave the answer."""
        try:
            yield
        except (OSError, ServerError, ServiceUnavailableError, TooManyRequestsError, ValidationError) as e:
            if self.is_remote:
                raise CommitStateUnknownException(str(e)) from e
            raise
