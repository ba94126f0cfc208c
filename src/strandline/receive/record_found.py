"""Records bodies in the spool that the ledger does not know, by the note in their file.

Either the writer of such a file died before the commit point, or the ledger was restored from a copy that is older than
the body: then the body was acknowledged, and is never sent again. The two cases need not be distinguished: a body that
was not acknowledged may be recorded, too.

Another receiver may be about to record the same file. If we record the body first, that receiver finds a repeat, and
removes its file. So we record a copy under a new name.

While a dataset is on hold, it is unknown whether its table has the bodies in receipts of batches that the ledger does
not have as published. These doubtful bodies stay where they are. They are matched by identity and not by file
name: another copy of the ledger may have recorded the same body in another file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from strandline.core import failpoints
from strandline.core.errors import StorageError
from strandline.core.forward_protocol import KeyIdentity, LaneName
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset, DatasetId, SeqRange
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import receive_holds, received, spool_files
from strandline.ledger.receive.batch_receipts import files_of, finished_batches
from strandline.ledger.receive.receipts import Note, Receipts, TokenFingerprint
from strandline.ledger.receive.received import BodyGone, Decision, New, OnHold, OtherBody, Overlaps, Repeat
from strandline.ledger.receive.senders import NotClaimed, NotOwner, SenderPassed
from strandline.ledger.receive.spool_files import LeftFile
from strandline.receive.spool import UNSURE_SUFFIX, Spool

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecordedBodies:
    bodies: int = 0
    rows: int = 0
    unclaimed: int = 0  # bodies whose sender must claim its lanes first: this ledger does not know the claim either
    left: list[LeftFile] = field(default_factory=list)  # files whose bodies cannot be recorded, also unclaimed ones


@dataclass(frozen=True, slots=True)
class Doubtful:
    files: frozenset[str]
    keys: frozenset[tuple[TokenFingerprint | None, str]]
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
            return False  # removed meanwhile, or damaged: it cannot be ingested
        return note is not None and self.has(note)


def find_doubtful(ledger: Ledger, receipts: Receipts, dataset: Dataset) -> Doubtful:
    listed = [batch_id for batch_id, _ in receipts.list_batches(dataset.table_uuid)]
    finished = ledger.query(finished_batches, listed)
    files, keys, ranges = set[str](), set[tuple[TokenFingerprint | None, str]](), dict[LaneName, tuple[SeqRange, ...]]()
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


@dataclass(frozen=True, slots=True)
class FoundBodies:
    ledger: Ledger
    spool: Spool
    receipts: Receipts

    def run(self, *, older_than: datetime | None = None) -> RecordedBodies:
        """Records the files that were written before `older_than`, or all. If a dataset is on hold, bodies that may be
        in its table already stay where they are."""
        listed = self.spool.bodies()  # before the ledger is read, so that a body recorded meanwhile is known
        with self.ledger.read() as connection:
            known = spool_files.list_spool_files(connection)
            left_before = spool_files.read_left(connection).first
            by_uuid = {d.table_uuid: d for d in datasets.list_datasets(connection)}
            on_hold = receive_holds.list_holds(connection)
        unknown = {name: at for name, at in listed if name not in known}
        found = [name for name, at in unknown.items() if older_than is None or at <= older_than]
        doubtful = {
            dataset.id: find_doubtful(self.ledger, self.receipts, dataset)
            for dataset in by_uuid.values()
            if dataset.id in on_hold
        }
        done = self._record(found, by_uuid, doubtful)
        # Files that are too young for this run keep their entry.
        young = [f for f in left_before if f.name in unknown and f.name not in found]
        spool_files.record_left(self.ledger, [*done.left, *young])
        return done

    def _record(
        self, names: list[str], by_uuid: Mapping[str, Dataset], doubtful: Mapping[DatasetId, Doubtful]
    ) -> RecordedBodies:
        found = RecordedBodies()
        for name in names:
            dataset = by_uuid.get(name.partition("/")[0])
            if dataset is None:
                continue  # the reconciler reports it
            try:
                reason = self._take(name, dataset, doubtful.get(dataset.id), found)
            except StorageError as e:
                reason = e.message if self.spool.exists(name) else None  # None: it was ingested meanwhile
            if reason is not None:
                found.left.append(LeftFile(name, dataset.name, reason))
        if found.bodies:
            log.warning(
                "%d bodies (%d rows) in the spool were not in the ledger: they are recorded now",
                found.bodies,
                found.rows,
            )
            self.ledger.change(audit.record, Event.BODIES_FOUND, bodies=found.bodies, rows=found.rows)
        return found

    def _take(self, name: str, dataset: Dataset, doubtful: Doubtful | None, found: RecordedBodies) -> str | None:
        """Why the file stays unrecorded; None if it was recorded, or need not be."""
        note = self.spool.note(name)
        if note is None:
            return "it has no note of its body"
        if doubtful is not None and (name in doubtful.files or doubtful.has(note)):
            return None  # the hold reports it, and a person decides
        copy, size = self.spool.copy(name)
        self.spool.sync([copy])
        failpoints.hit("adopt_body.before_record")
        decision = received.record_found(self.ledger, dataset.id, note, spool=copy, spool_bytes=size)
        failpoints.hit("adopt_body.after_record")
        if isinstance(decision, New):
            self.spool.remove([name])
            found.bodies, found.rows = found.bodies + 1, found.rows + note.rows
            return None
        self.spool.remove([copy])
        if isinstance(decision, Repeat):
            return self._settle_repeat(name, dataset, note)
        found.unclaimed += isinstance(decision, NotClaimed)
        return _why_not(decision)

    def _settle_repeat(self, name: str, dataset: Dataset, note: Note) -> str | None:
        """Settles a file whose body the ledger has in another file. Usually this one is removed. But the other file may
        be gone: if another copy of the ledger was in use meanwhile, its receiver has recorded a copy, as we do, and
        removed the original. Then this file replaces it, unless a person has set the other file aside. Otherwise this
        file stays, and the reason is returned."""
        needed = self.ledger.change(files_of, dataset.id, note)
        if name in needed:
            return None
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
            return f"other files of its rows are gone, or were set aside: {', '.join(gone[:3])}"
        return None


def _why_not(decision: Decision) -> str | None:
    match decision:
        case NotOwner():
            return "its lanes belong to another token now"
        case NotClaimed():
            return "its sender has not claimed its lanes, or has claimed a later generation of them"
        case SenderPassed():
            return "another site leads its sender's lake now"
        case Overlaps():
            return "the ledger has some of its sequence numbers from another body, and not all of them"
        case OtherBody():
            return "its key was used for another body"
        case New() | Repeat() | BodyGone() | OnHold():
            return None  # its dataset was dropped a moment ago, or its hold is reported already
