"""Records the epoch of a follower's table that its ledger does not know: a cut or a promotion raised it and was not
finished. Nobody could publish to such a table: everybody publishes with the ledger's epoch (docs/adr/0089).
"""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset
from strandline.ledger import audit
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import sites
from strandline.ledger.witness import Witness


def record(connection: sa.Connection, witness: Witness, of: Dataset, found: int) -> None:
    """Moves the ledger's epoch above the one that was found on the table. Changes nothing if the ledger has reached it,
    or at a site that leads. Raises `ResyncNeeded`: another copy of the ledger may have raised it."""
    counter = sequence.check(connection, witness)
    if found <= counter.epoch or not sites.get(connection).follows:
        return
    # One more: a copy of the ledger that raised the table, and died before its witness, must not share the epoch.
    sequence.move(connection, last=counter.last, epoch=found + 1)
    audit.record(connection, Event.EPOCH_FOUND, dataset=of.name, ledger=counter.epoch, table=found)
