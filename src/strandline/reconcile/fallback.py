"""Surveys in this process as long as the references fit into memory, and on Spark beyond that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from strandline.core.errors import CalledOff, ReferencesTooMany, StrandlineError
from strandline.iceberg.lake_tables import LakeTables
from strandline.reconcile.compare.compared import Survey
from strandline.reconcile.model import LedgerContext, Watch
from strandline.reconcile.references.collect import LakeReferences
from strandline.reconcile.survey import LakeSurveyor

if TYPE_CHECKING:
    from strandline.reconcile.on_spark.survey import SparkSurveyor

T = TypeVar("T")


class FallbackSurveyor:
    def __init__(self, light: LakeSurveyor, tables: LakeTables) -> None:
        self._light = light
        self._tables = tables
        self._on_spark: SparkSurveyor | None = None

    def survey(self, ledger_context: LedgerContext, watch: Watch) -> Survey:
        """Reads storage first, then references. Raises `ReferencesTooMany` if they do not fit into memory and Spark
        cannot be used, and `StorageError` if the catalog could not be read at all."""
        return self._do(lambda surveyor: surveyor.survey(ledger_context, watch))

    def references(self, known: LakeReferences | None, watch: Watch) -> LakeReferences:
        """The present references. A table is read only if its pointer moved since `known`; `unread` has those that
        fail."""
        return self._do(lambda surveyor: surveyor.references(known, watch))

    def _do(self, work: Callable[[LakeSurveyor | SparkSurveyor], T]) -> T:
        """A run that has moved to Spark stays there."""
        if self._on_spark is None:
            try:
                return work(self._light)
            except ReferencesTooMany as e:
                self._on_spark = self._started(e)
        return work(self._on_spark)

    def close(self) -> None:
        if self._on_spark is not None:
            self._on_spark.close()

    def _started(self, because: ReferencesTooMany) -> SparkSurveyor:
        from strandline.reconcile.on_spark.survey import SparkSurveyor

        try:
            _ = self._tables.unsettled  # starts Spark, if nothing has yet
            return SparkSurveyor(self._light)
        except CalledOff:
            raise
        except StrandlineError as e:
            raise ReferencesTooMany(f"{because.message}, and Spark cannot be used: {e.message}", hint=e.hint) from e
