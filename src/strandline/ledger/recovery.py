"""What every stage asks for before it believes the ledger. `ingest/facade.Ingestion` gives it."""

from __future__ import annotations

from typing import Protocol


class Recovery(Protocol):
    def catch_up(self) -> None:
        """Resyncs a ledger that was restored, before it is asked what is settled."""

    def recover(self) -> object:
        """Settles what dead writers left: staged blocks are rolled forward, so that nothing waits on a branch."""
