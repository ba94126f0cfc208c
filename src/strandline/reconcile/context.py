"""What a run works with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from strandline.core.errors import StorageError
from strandline.core.reconcile_records import Asked, Swept
from strandline.core.settings_reconcile import ReconcileSettings
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.reconcile import reconcile_runs
from strandline.reconcile.fallback import FallbackSurveyor
from strandline.reconcile.model import LedgerContext, Stat, Storage
from strandline.reconcile.references.lake_catalog import LakeCatalog

QUARANTINE_FOLDER = "_strandline/quarantine/reconcile"


@dataclass(frozen=True)
class SweepContext:
    ledger: Ledger
    settings: ReconcileSettings
    storage: Storage
    catalog: LakeCatalog
    surveyor: FallbackSurveyor
    ledger_context: Callable[[Asked], LedgerContext]  # reads the ledger when a run begins
    # why nothing may be touched, or None; takes the uuids of the catalog's tables by name, and the unreadable tables
    gate: Callable[[Mapping[str, str], Collection[str]], str | None]
    warehouse: str  # canonical
    spooled: Callable[[Sequence[str]], set[str]]  # which of these spool files the ledger has a record of by now
    # canonical paths of the metadata files that the catalog names for these tables, if it tells without reading them
    pointers: Callable[[Collection[str]], Sequence[str]] = lambda tables: ()

    # the id of the warehouse's folder, if other machines may have another folder at the same path
    folder: str | None = None

    def here(self, connection: Connection, files: Sequence[Swept]) -> list[Swept]:
        """Without files that a run quarantined in another machine's folder."""
        elsewhere = reconcile_runs.elsewhere(connection, self.folder)
        return [file for file in files if file.run not in elsewhere]

    def look_at(self, paths: Sequence[str]) -> list[Stat | StorageError | None]:
        """Checks the paths in parallel; the results are in the order of the paths."""

        def look(path: str) -> Stat | StorageError | None:
            try:
                return self.storage.look(path)
            except StorageError as e:
                return e

        if self.settings.recheck_concurrency == 1 or len(paths) < 2:
            return [look(path) for path in paths]
        with ThreadPoolExecutor(self.settings.recheck_concurrency) as pool:
            return list(pool.map(look, paths))
