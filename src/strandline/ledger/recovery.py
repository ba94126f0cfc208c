"""What each stage must do before it trusts the ledger. `ingest/facade.Ingestion` implements it."""

from __future__ import annotations

from typing import Protocol


class Recovery(Protocol):
    def catch_up(self) -> None:
        """Resyncs a ledger that was restored, so that the caller can trust its settled blocks."""

    def recover(self) -> object:
        """Settles the blocks of dead writers: it publishes staged blocks, so that no rows wait on a branch."""
