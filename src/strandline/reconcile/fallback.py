"""Surveys in this process as long as the references fit into memory, and on Spark beyond that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.core.errors import ReferencesTooMany, StrandlineError
from strandline.reconcile.model import LedgerContext, Survey, Watch
from strandline.reconcile.references.collect import LakeReferences
from strandline.reconcile.survey import LakeSurveyor

if TYPE_CHECKING:
    from strandline.iceberg.spark.tables import SparkTables
    from strandline.reconcile.on_spark.survey import SparkSurveyor


class FallbackSurveyor:
    def __init__(self, light: LakeSurveyor, tables: Callable[[], SparkTables]) -> None:
        self._light = light
        self._tables = tables
        self._on_spark: SparkSurveyor | None = None

    def survey(self, ledger_context: LedgerContext, watch: Watch) -> Survey:
        if self._on_spark is None:
            try:
                return self._light.survey(ledger_context, watch)
            except ReferencesTooMany as e:
                self._on_spark = self._started(e)
        return self._on_spark.survey(ledger_context, watch)

    def references(self, known: LakeReferences | None, watch: Watch) -> LakeReferences:
        """The present references. A run that has moved to Spark stays there."""
        if self._on_spark is None:
            try:
                return self._light.references(known, watch)
            except ReferencesTooMany as e:
                self._on_spark = self._started(e)
        return self._on_spark.references(known, watch)

    def close(self) -> None:
        if self._on_spark is not None:
            self._on_spark.close()

    def _started(self, because: ReferencesTooMany) -> SparkSurveyor:
        from strandline.reconcile.on_spark.survey import SparkSurveyor

        try:
            return SparkSurveyor(self._light, self._tables())
        except StrandlineError as e:
            raise ReferencesTooMany(f"{because.message}, and Spark cannot be used: {e.message}", hint=e.hint) from e
