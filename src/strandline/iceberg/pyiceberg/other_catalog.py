"""Opens catalogs that are not the lake's own, through PyIceberg. Importing this imports PyIceberg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.errors import StorageError
from strandline.iceberg.metadata.metadata_peek import sqlite_uri
from strandline.iceberg.pyiceberg.errors import explained
from strandline.storage.s3_settings import S3Settings, no_trailers

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_FILES = "strandline.iceberg.pyiceberg.local_files.DurableFiles"


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """A catalog: a SQLite file on this machine, or a REST server. It is pickled and sent to executors."""

    place: str  # the file, or the server's address
    is_remote: bool
    name: str  # in a SQLite file, which may have several catalogs
    options: Mapping[str, str] = field(repr=False)  # further options of PyIceberg, secrets among them
    store: S3Settings | None = None  # of the data files

    def open(self) -> Catalog:
        """Raises StorageError."""
        options = {"py-io-impl": _FILES, **self.options}
        if self.store is not None:
            options = self.store.pyiceberg_options() | options
            if self.store.endpoint is not None:
                no_trailers()
        with explained(self.place):
            if self.is_remote:
                from strandline.iceberg.pyiceberg.internals import rest_catalog

                return rest_catalog(self.name, {**options, "uri": self.place})
            if not Path(self.place).is_file():
                raise StorageError(f"there is no SQLite catalog {self.place}")
            from pyiceberg.catalog.sql import SqlCatalog

            return SqlCatalog(self.name, uri=sqlite_uri(self.place), **options)
