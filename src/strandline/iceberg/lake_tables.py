"""The interfaces through which the stages get a lake's tables. Importing this loads neither PyIceberg nor Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.spark.tables import SparkTables


class CatalogAccess(Protocol):
    """The tables without a JVM."""

    @property
    def catalog(self) -> PyIcebergCatalog:
        """Opened at the first use. Raises StorageError if it cannot be opened."""


class LakeTables(CatalogAccess, Protocol):
    """The tables without a JVM, and through Spark. `lake_parts.OpenTables` implements it."""

    @property
    def settled(self) -> SparkTables:
        """The first use starts Spark and settles the blocks of dead writers."""

    @property
    def unsettled(self) -> SparkTables:
        """The first use starts Spark. Blocks of dead writers may be open."""
