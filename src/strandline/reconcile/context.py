"""What a run works with."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from strandline.core.errors import StorageError
from strandline.core.records.reconcile_records import Swept
from strandline.core.settings.reconcile import ReconcileSettings
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.reconcile import reconcile_runs
from strandline.reconcile.fallback import FallbackSurveyor
from strandline.reconcile.ledger_context import LedgerContextLoader
from strandline.reconcile.model import Stat, Storage
from strandline.reconcile.preparation import Preparation
from strandline.reconcile.references.lake_catalog import LakeCatalog

QUARANTINE_FOLDER = "_strandline/quarantine/reconcile"


@dataclass(frozen=True)
class SweepContext:
    ledger: Ledger
    settings: ReconcileSettings
    storage: Storage
    catalog: LakeCatalog
    surveyor: FallbackSurveyor
    loader: LedgerContextLoader
    preparation: Preparation
    warehouse: str  # canonical
    # the id of the warehouse's folder, if other machines may have another folder at the same path
    folder: str | None = None

    def here(self, connection: Connection, files: Sequence[Swept]) -> list[Swept]:
        """Without files that a run quarantined in another machine's folder."""
        elsewhere = reconcile_runs.runs_in_other_folders(connection, self.folder)
        return [file for file in files if file.run not in elsewhere]

    def find_files(self, paths: Sequence[str]) -> list[Stat | StorageError | None]:
        """Checks the paths in parallel; the results are in the order of the paths."""

        def find(path: str) -> Stat | StorageError | None:
            try:
                return self.storage.find_file(path)
            except StorageError as e:
                return e

        if self.settings.recheck_concurrency == 1 or len(paths) < 2:
            return [find(path) for path in paths]
        with ThreadPoolExecutor(self.settings.recheck_concurrency) as pool:
            return list(pool.map(find, paths))
