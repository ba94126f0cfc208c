"""The catalog of record of a lake, as the sweep needs it: without a JVM wherever the format allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strandline.core.errors import NoSuchDataset
from strandline.iceberg.lake_tables import LakeTables
from strandline.iceberg.pyiceberg import drop_entries as light_drop
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.reconcile.paths import key


@dataclass(frozen=True)
class LakeCatalog:
    """If the catalog cannot be read at all, methods raise `StorageError`."""

    tables: LakeTables

    @property
    def _catalog(self) -> PyIcebergCatalog:
        return self.tables.catalog

    def drop_entries(
        self, table: str, paths: Sequence[str], *, token: str, summary: Mapping[str, str], last_word: Callable[[], None]
    ) -> int:
        """Removes the entries of data files from main in one commit, once per token; returns how many. `last_word`
        raises to prevent the commit. Raises `CommitUnknown` if the outcome is unknown."""
        if not light_drop.can_drop_entries(self._catalog, table):
            from strandline.iceberg.spark.drop_entries import drop_data_files

            spark = self.tables.unsettled
            return drop_data_files(spark, table, paths, token=token, summary=summary, before_commit=last_word)
        return light_drop.drop_data_files(
            self._catalog,
            table,
            {key(path) for path in paths},
            key,
            token=token,
            summary=summary,
            before_commit=last_word,
        )

    def dropped(self, table: str, token: str) -> int | None:
        """How many entries the commit of a batch removed; None if it did not land. Voids the token: from then on the
        batch cannot be committed any more."""
        if self._catalog.exists(table) and light_drop.can_drop_entries(self._catalog, table):
            light_drop.void(self._catalog, table, token)
        return light_drop.landed(self._catalog, table, token)

    def may_have(self, table: str, paths: Sequence[str]) -> bool:
        """False if main certainly has no entry for any of them."""
        try:
            return light_drop.has_entries(self._catalog, table, {key(path) for path in paths}, key)
        except NoSuchDataset:
            return True
