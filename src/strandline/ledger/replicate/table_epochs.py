"""Records the epoch of a follower's table if it is above the ledger's: a cut or a promotion raised it and did not
finish. Otherwise nobody could publish to that table, because everybody publishes with the ledger's epoch
(docs/adr/0089).
"""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset
from strandline.ledger import audit
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import sites
from strandline.ledger.witness import Witness


def record(connection: sa.Connection, witness: Witness, of: Dataset, table_epoch: int) -> None:
    """Moves the ledger's epoch above the table's. Changes nothing if the ledger has reached it, or at a site that
    leads. Raises `ResyncNeeded`: another copy of the ledger may have raised the table's epoch."""
    counter = sequence.check(connection, witness)
    if table_epoch <= counter.epoch or not sites.get(connection).follows:
        return
    # One more: a copy of the ledger that raised the table, and died before its witness, must not share the epoch.
    sequence.move(connection, last=counter.last, epoch=table_epoch + 1)
    audit.record(connection, Event.EPOCH_FOUND, dataset=of.name, ledger=counter.epoch, table=table_epoch)
