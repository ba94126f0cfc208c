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
from strandline.reconcile.model import Catalog, LedgerContext, Stat, Storage, Surveyor

QUARANTINE_FOLDER = "_strandline/quarantine/reconcile"


@dataclass(frozen=True)
class SweepContext:
    ledger: Ledger
    settings: ReconcileSettings
    storage: Storage
    catalog: Catalog
    surveyor: Surveyor
    ledger_context: Callable[[Asked], LedgerContext]
    """What the ledger says, read when a run begins."""
    gate: Callable[[Mapping[str, str], Collection[str]], str | None]
    """Given the uuids of the tables that the catalog has, by name, and those that could not be read: why nothing may
    be touched, if so."""
    warehouse: str
    """Canonical."""
    spooled: Callable[[Sequence[str]], set[str]]
    """Which of these spool files the ledger has a record of by now."""
    pointers: Callable[[Collection[str]], Sequence[str]] = lambda tables: ()
    """Canonical paths of the metadata files that the catalog names for these tables, where it says so without reading
    them."""

    folder: str | None = None
    """The id of the warehouse's folder, where other machines may have one of their own under its path."""

    def here(self, connection: Connection, files: Sequence[Swept]) -> list[Swept]:
        """Without those that a run set aside in another folder."""
        elsewhere = reconcile_runs.elsewhere(connection, self.folder)
        return [file for file in files if file.run not in elsewhere]

    def look_at(self, paths: Sequence[str]) -> list[Stat | StorageError | None]:
        """Side by side, in the order given. An error is about its one path."""

        def look(path: str) -> Stat | StorageError | None:
            try:
                return self.storage.look(path)
            except StorageError as e:
                return e

        if self.settings.recheck_concurrency == 1 or len(paths) < 2:
            return [look(path) for path in paths]
        with ThreadPoolExecutor(self.settings.recheck_concurrency) as pool:
            return list(pool.map(look, paths))
