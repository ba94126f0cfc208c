"""Whether the tables of a site have what its ledger says, before the site becomes the leader. Starts no JVM."""

from __future__ import annotations

from strandline.core.errors import RefusedError, StrandlineError
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from strandline.read.settled_view import check_loaded


def check_tables(ledger: Ledger, catalog: PyIcebergCatalog, lake: str) -> None:
    """Raises RefusedError if a table is lost, was replaced or rolled back: the ledger would say that this site has rows
    which are nowhere here."""
    for dataset in ledger.query(datasets.list_datasets):
        try:
            check_loaded(ledger, catalog, lake, dataset)
        except StrandlineError as e:
            raise RefusedError(
                f"the table of {dataset.name} does not have what the ledger of this site says: {e.message}",
                hint="Restore the table, or promote another site. If there is none, --force promotes this one without "
                f"it. {e.hint or ''}".strip(),
            ) from e
