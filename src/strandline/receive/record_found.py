"""Bodies in the spool that the ledger does not know are recorded by the note that they carry.

Whoever wrote such a file died before the commit point, or the ledger was restored from a copy that is older than the
body: then its sender was told that it is safe, and never sends it again. Nobody can tell the two apart, and nobody
needs to: what was not answered may be taken, too.

Another receiver may have the file in hand. If we record the body first, that receiver finds a repeat, and removes its
file. So we record a copy under a name of our own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from strandline.core import failpoints
from strandline.core.errors import StorageError
from strandline.core.types import Dataset
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import receive_holds, received, spool_files
from strandline.ledger.receive.batch_receipts import files_of, finished_batches
from strandline.ledger.receive.owners import NotClaimed
from strandline.ledger.receive.received import New, Repeat
from strandline.receive.spool import UNSURE_SUFFIX, Spool
from strandline.storage.receipts import Note, Receipts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Adopted:
    bodies: int
    rows: int
    unclaimed: int
    """Bodies whose sender has to claim its lanes first: this ledger has forgotten the claim, too."""


@dataclass(frozen=True, slots=True)
class Adoption:
    ledger: Ledger
    spool: Spool
    receipts: Receipts

    def run(self, *, older_than: datetime | None = None) -> Adopted:
        """Every file that was written before the moment, or every one. What may be in the table already, of a dataset
        whose receiver holds, is left where it is."""
        listed = self.spool.bodies()  # before the ledger is asked: what is recorded meanwhile is known then
        with self.ledger.read() as connection:
            known = spool_files.every_spooled(connection)
            by_uuid = {d.table_uuid: d for d in datasets.every(connection)}
            held = receive_holds.every(connection)
        found = [name for name, at in listed if name not in known and (older_than is None or at <= older_than)]
        doubtful: set[str] = set()
        for dataset in by_uuid.values():
            if dataset.id in held:
                doubtful |= doubtful_files(self.ledger, self.receipts, dataset)
        return self._record([name for name in found if name not in doubtful], by_uuid)

    def _record(self, names: list[str], by_uuid: Mapping[str, Dataset]) -> Adopted:
        bodies = rows = unclaimed = 0
        for name in names:
            dataset = by_uuid.get(name.partition("/")[0])
            if dataset is None:
                continue  # the reconciler reports it
            try:
                decision, count = self._take(name, dataset)
            except StorageError as e:
                log.warning("a body in the spool cannot be recorded: %s", e.message)
                continue
            if isinstance(decision, New):
                bodies, rows = bodies + 1, rows + count
            elif isinstance(decision, NotClaimed):
                unclaimed += 1
        if bodies:
            log.warning("%d bodies (%d rows) in the spool were not in the ledger: they are recorded now", bodies, rows)
            with self.ledger.write() as connection:
                audit.record(connection, "bodies_found", bodies=bodies, rows=rows)
        return Adopted(bodies, rows, unclaimed)

    def _take(self, name: str, dataset: Dataset) -> tuple[received.Decision | None, int]:
        note = self.spool.note(name)
        if note is None:
            return None, 0
        copy, size = self.spool.copy(name)
        self.spool.sync([copy])
        failpoints.hit("adopt_body.before_record")
        decision = received.record_found(self.ledger, dataset.id, note, spool=copy, spool_bytes=size)
        failpoints.hit("adopt_body.after_record")
        if isinstance(decision, New):
            self.spool.remove([name])
            return decision, note.rows
        self.spool.remove([copy])
        if isinstance(decision, Repeat):
            self._settle_repeat(name, dataset, note)
        return decision, 0

    def _settle_repeat(self, name: str, dataset: Dataset, note: Note) -> None:
        """The ledger has the body by another file, so this one is not needed. But that file may be gone: another copy
        of the ledger was in use meanwhile, and its receiver has recorded a copy, as we do, and removed the original.
        Then this file takes its place, unless a person has set that file aside. Otherwise it stays where it is."""
        with self.ledger.write() as connection:
            needed = files_of(connection, dataset.id, note)
        if name in needed:
            return
        gone = [spool for spool in needed if not self.spool.exists(spool)]
        if not gone:
            self.spool.remove([name])
        elif len(needed) == 1 and needed[gone[0]] and not self.spool.exists(gone[0] + UNSURE_SUFFIX):
            self.spool.copy(name, gone[0])
            self.spool.sync(gone)
            failpoints.hit("adopt_body.after_put_back")
            self.spool.remove([name])
            log.warning("%s: its file was gone, and %s has taken its place", gone[0], name)
        else:
            log.warning("%s stays: other files of its rows are gone, or were set aside: %s", name, ", ".join(gone[:3]))


def doubtful_files(ledger: Ledger, receipts: Receipts, dataset: Dataset) -> set[str]:
    """Files of batches that the ledger does not know to be published, whether it knows the batch or not: while the
    receiver holds, nobody can say whether the table has their rows."""
    listed = [batch_id for batch_id, _ in receipts.listed(dataset.table_uuid)]
    with ledger.read() as connection:
        finished = finished_batches(connection, listed)
    unknown = (receipts.read(dataset.table_uuid, batch_id) for batch_id in listed if batch_id not in finished)
    return {body.spool for receipt in unknown if receipt is not None for body in receipt.bodies}
