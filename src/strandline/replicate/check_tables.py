"""Checks that the tables of a site have what its ledger says, before the site becomes the leader. Starts no JVM."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.errors import RefusedError, StrandlineError
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from strandline.read.settled_view import check_loaded
from strandline.replicate.follow.context import SiteParts


@dataclass(frozen=True, slots=True)
class SiteTables:
    lake: str
    ledger: Ledger
    parts: SiteParts

    def check(self) -> None:
        """Raises RefusedError if a table is lost, was replaced or rolled back: the site would lead without rows that
        its ledger has."""
        for dataset in self.ledger.query(datasets.list_datasets):
            try:
                check_loaded(self.ledger, self.parts.catalog, self.lake, dataset)
            except StrandlineError as e:
                raise RefusedError(
                    f"the table of {dataset.name} does not have what the ledger of this site says: {e.message}",
                    hint="Restore the table, or promote another site. If there is none, --force promotes this one "
                    f"without it. {e.hint or ''}".strip(),
                ) from e
