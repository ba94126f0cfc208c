"""The catalog of record of a lake, as the sweep needs it: without a JVM wherever the format allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.core.errors import NoSuchDataset, StorageError
from strandline.iceberg.pyiceberg import drop_entries as light_drop
from strandline.iceberg.pyiceberg.catalog import COMMIT_ATTEMPTS_MAX, PyIcebergCatalog
from strandline.reconcile.model import LedgerContext, References, Survey, Watch
from strandline.reconcile.paths import key
from strandline.reconcile.references.collect import LakeReferences

if TYPE_CHECKING:
    from strandline.iceberg.spark.tables import SparkTables

ReadReferences = Callable[[LakeReferences | None, Watch], LakeReferences]


class LakeCatalog:
    def __init__(self, catalog: PyIcebergCatalog, read: ReadReferences, spark: Callable[[], SparkTables]) -> None:
        self._catalog = catalog
        self._read = read
        self._spark = spark

    def references(self, known: References | None, watch: Watch) -> References:
        # `known` is only a shortcut, and useless if another reader made it.
        return self._read(known if isinstance(known, LakeReferences) else None, watch)

    def drop_entries(
        self, table: str, paths: Sequence[str], *, token: str, summary: Mapping[str, str], last_word: Callable[[], None]
    ) -> int:
        if not light_drop.is_possible(self._catalog, table):
            from strandline.iceberg.spark.drop_entries import drop_data_files

            return drop_data_files(self._spark(), table, paths, token=token, summary=summary, before_commit=last_word)
        return light_drop.drop_data_files(
            self._catalog,
            table,
            {key(path) for path in paths},
            key,
            token=token,
            summary=summary,
            attempts_max=COMMIT_ATTEMPTS_MAX,
            before_commit=last_word,
        )

    def dropped(self, table: str, token: str) -> int | None:
        if self._catalog.exists(table) and light_drop.is_possible(self._catalog, table):
            light_drop.void(self._catalog, table, token)
        return light_drop.landed(self._catalog, table, token)

    def may_have(self, table: str, paths: Sequence[str]) -> bool:
        try:
            return light_drop.has_entries(self._catalog, table, {key(path) for path in paths}, key)
        except NoSuchDataset:
            return True


class AwayCatalog:
    """Stands for a catalog that could not be opened: every method raises why. So a run ends with a recorded reason, and
    whatever needs no catalog still works."""

    def __init__(self, why: StorageError) -> None:
        self._why = why

    def survey(self, ledger_context: LedgerContext, watch: Watch) -> Survey:
        raise self._why

    def references(self, known: References | None, watch: Watch) -> References:
        raise self._why

    def drop_entries(
        self, table: str, paths: Sequence[str], *, token: str, summary: Mapping[str, str], last_word: Callable[[], None]
    ) -> int:
        raise self._why

    def dropped(self, table: str, token: str) -> int | None:
        raise self._why

    def may_have(self, table: str, paths: Sequence[str]) -> bool:
        raise self._why
