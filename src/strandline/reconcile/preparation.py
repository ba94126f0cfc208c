"""Makes catalog and ledger ready, before a run or anything else relies on them."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from strandline.core.errors import CalledOff, RefusedError, StorageError, StrandlineError, WitnessUnreadable
from strandline.core.records.reconcile_records import Asked
from strandline.iceberg.lake_tables import CatalogAccess
from strandline.ledger.recovery import Recovery
from strandline.reconcile.ledger_context import LedgerContextLoader

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preparation:
    tables: CatalogAccess
    loader: LedgerContextLoader
    recovery: Recovery

    def for_run(self, asked: Asked) -> None:
        """For a run that is on record already: a catalog on another machine may hang. If something is missing, the run
        notices it again under its lease, and ends with a reason on record."""
        self.open_catalog()
        if asked.act and self.loader.behind() is not None:
            try:
                self.recovery.recover()
            except CalledOff:
                raise
            except StrandlineError as e:
                _log_failure(e)

    def for_files(self) -> None:
        """For what restores or deletes quarantined files. Raises if the ledger was restored and cannot be resynced."""
        if self.loader.behind() is not None:
            try:
                self.recovery.recover()
            except WitnessUnreadable as e:
                _log_failure(e)
            if (why := self.loader.behind()) is not None:
                raise RefusedError(why, hint="`strandline status` says what is wrong with the witness.")
        self.open_catalog()

    def open_catalog(self) -> None:
        with suppress(StorageError):
            # If it cannot be opened, the first step that needs it raises why: a run ends with a recorded reason.
            _ = self.tables.catalog


def _log_failure(error: StrandlineError) -> None:
    log.warning("the ledger cannot be resynced: %s", error.message)
