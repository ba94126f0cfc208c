"""Finds bodies that may be in the table already: receipts name them, in batches that the ledger does not have as
published.

While a dataset is on hold, nobody knows whether its table has these bodies. They are matched by identity and not by
file name: another copy of the ledger may have recorded the same body in another file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.core.errors import StorageError
from strandline.core.forward_protocol import KeyIdentity, LaneName
from strandline.core.types import Dataset, SeqRange
from strandline.ledger.engine import Ledger
from strandline.ledger.receive.batch_receipts import finished_batches
from strandline.ledger.receive.receipts import Note, Receipts, TokenMark
from strandline.receive.spool import Spool


@dataclass(frozen=True, slots=True)
class Doubtful:
    files: frozenset[str]
    keys: frozenset[tuple[TokenMark | None, str]]
    ranges: Mapping[LaneName, tuple[SeqRange, ...]]

    def has(self, note: Note) -> bool:
        """Whether the table may have any row of this body."""
        if isinstance(note.identity, KeyIdentity):
            return (note.owner, note.identity.key) in self.keys
        rows = note.identity.rows
        return any(rows.overlaps(other) for other in self.ranges.get(note.identity.lane, ()))

    def files_in(self, spool: Spool, dataset: Dataset) -> list[str]:
        """The spool files of these bodies, recorded in the ledger or not."""
        return [name for name, _ in spool.bodies(dataset.table_uuid) if name in self.files or self._is_in(spool, name)]

    def _is_in(self, spool: Spool, name: str) -> bool:
        try:
            note = spool.note(name)
        except StorageError:
            return False  # removed meanwhile, or damaged: nobody can ingest it
        return note is not None and self.has(note)


def find_doubtful(ledger: Ledger, receipts: Receipts, dataset: Dataset) -> Doubtful:
    listed = [batch_id for batch_id, _ in receipts.listed(dataset.table_uuid)]
    with ledger.read() as connection:
        finished = finished_batches(connection, listed)
    files, keys, ranges = set[str](), set[tuple[TokenMark | None, str]](), dict[LaneName, tuple[SeqRange, ...]]()
    for batch_id in listed:
        receipt = None if batch_id in finished else receipts.read(dataset.table_uuid, batch_id)
        for body in () if receipt is None else receipt.bodies:
            files.add(body.spool)
            identity = body.note.identity
            if isinstance(identity, KeyIdentity):
                keys.add((body.note.owner, identity.key))
            else:
                ranges[identity.lane] = (*ranges.get(identity.lane, ()), identity.rows)
    return Doubtful(frozenset(files), frozenset(keys), ranges)
