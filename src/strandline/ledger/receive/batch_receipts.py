"""Receipts of batches: their content, and how a restored ledger recovers a batch from its receipt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.forward_protocol import BodyIdentity, KeyIdentity, LaneName, RangeIdentity
from strandline.core.types import DatasetId, Seq, SeqRange
from strandline.ledger.engine import rows_with, utc_now
from strandline.ledger.receive import tokens
from strandline.ledger.receive.batches import published_as
from strandline.ledger.receive.ranges import keep_lanes, lane_key
from strandline.ledger.receive.receipts import Note, Receipt, ReceiptBody
from strandline.ledger.schema.receive import api_token, receive_batch, received, source_lane


def read_receipt(connection: sa.Connection, id: int, batch_id: str) -> Receipt:
    """The bodies of the batch, as the ledger has them; without those whose keys were deleted since it was published."""
    return Receipt(batch_id, tuple(map(_body, connection.execute(_BODIES, {"id": id}))))


_BODIES = (
    sa.select(
        received,
        *source_lane.c["lake", "instance", "generation", "source_dataset", "partition"],
        api_token.c.name.label("token_name"),
        api_token.c.hash.label("token_hash"),
    )
    .join_from(received, source_lane, source_lane.c.id == received.c.lane_id, isouter=True)
    .join(api_token, api_token.c.id == received.c.token_id, isouter=True)
    .where(received.c.batch == sa.bindparam("id"))
    .order_by(received.c.place)
)


def _body(row: Any) -> ReceiptBody:
    identity: BodyIdentity
    if row.lane_id is None:
        identity, owner = KeyIdentity(row.key), tokens.fingerprint(row.token_name, row.token_hash)
    else:
        lane = LaneName(row.lake, row.instance, row.generation, row.source_dataset, row.partition)
        identity, owner = RangeIdentity(lane, SeqRange(Seq(row.lo), Seq(row.hi))), None
    note = Note(identity, owner, row.rows, row.digest, row.size)
    return ReceiptBody(note, row.spool, row.spool_bytes, row.place, row.received_at)


def restore_batch(connection: sa.Connection, dataset: DatasetId, receipt: Receipt, numbers: SeqRange) -> str | None:
    """Records a batch that the table has under these sequence numbers, with its bodies. A body that waits is placed in
    the batch, and so is not ingested again. If the ledger contradicts the receipt, nothing changes, and the returned
    text says how."""
    if has_batch(connection, receipt.batch_id):
        return None
    if receipt.rows > len(numbers):  # a follower's receipt may have fewer: its leader had deleted some keys
        return f"its receipt counts {receipt.rows} rows, and the table has the sequence numbers {numbers}"
    matches: list[tuple[ReceiptBody, _StoredBodies]] = []
    for body in receipt.bodies:
        stored = _find(connection, dataset, body.note)
        if not stored.fits(body.note):
            return f"the ledger has other rows, or another batch, for {describe(body.note.identity)}"
        matches.append((body, stored))
    batch = insert_published(connection, dataset, receipt.batch_id, numbers)
    for body, stored in matches:
        placed = {"batch": batch, "place": body.place}
        if stored.waiting is not None:
            connection.execute(received.update().where(received.c.id == stored.waiting.id).values(placed))
        else:
            connection.execute(received.insert().values(body_values(dataset, body) | stored.identity | placed))
    return None


def insert_published(connection: sa.Connection, dataset: DatasetId, batch_id: str, numbers: SeqRange) -> int:
    """Records a batch that the table has under these sequence numbers, without bodies yet. Returns its id."""
    values = {"batch_id": batch_id, "rows": len(numbers), "created_at": utc_now(), "failures": 0}
    inserted = receive_batch.insert().values(dataset_id=dataset, **values, **published_as(numbers))
    return int(connection.execute(inserted.returning(receive_batch.c.id)).scalar_one())


@dataclass(frozen=True, slots=True)
class _StoredBodies:
    identity: dict[str, Any]  # the columns that identify the body
    touched: Sequence[Any]  # the ledger's bodies with that key, or that overlap that range

    @property
    def waiting(self) -> Any | None:
        return self.touched[0] if self.touched else None

    def fits(self, note: Note) -> bool:
        """True if the ledger has none of these bodies, or only the note's, which is in no batch."""
        if not self.touched:
            return True
        [first, *others] = self.touched
        same = all(first._mapping[name] == value for name, value in self.identity.items())
        # A client may have used the key again, for other rows.
        same = same and (isinstance(note.identity, RangeIdentity) or first.digest == note.digest)
        return not others and same and first.batch is None and first.rows == note.rows


def files_of(connection: sa.Connection, dataset: DatasetId, note: Note) -> dict[str, bool]:
    """The spool files of the ledger's bodies with that key or that overlap that range, without those recorded as
    removed; and whether each is the file of this very body."""
    stored = _find(connection, dataset, note, bodies_max=None)
    return {
        row.spool: row.digest == note.digest and all(row._mapping[k] == v for k, v in stored.identity.items())
        for row in stored.touched
        if row.spool is not None and row.spool_removed_at is None
    }


def _find(connection: sa.Connection, dataset: DatasetId, note: Note, bodies_max: int | None = 2) -> _StoredBodies:
    identity: dict[str, Any]
    if isinstance(note.identity, RangeIdentity):
        key, rows = lane_key(dataset, note.identity.lane), note.identity.rows
        lane = keep_lanes(connection, {key})[key]
        identity = {"lane_id": lane, "lo": rows.lo, "hi": rows.hi}
        where = [received.c.lane_id == lane, received.c.lo <= rows.hi, received.c.hi >= rows.lo]
    else:
        if note.owner is None:
            raise ValueError("a key belongs to a token")
        identity = {"token_id": tokens.recall(connection, note.owner), "key": note.identity.key}
        where = [received.c.dataset_id == dataset, *(received.c[name] == value for name, value in identity.items())]
    return _StoredBodies(identity, connection.execute(sa.select(received).where(*where).limit(bodies_max)).all())


def body_values(dataset: DatasetId, body: ReceiptBody) -> dict[str, Any]:
    note = body.note
    return {
        "dataset_id": dataset,
        "rows": note.rows,
        "digest": note.digest,
        "size": note.size,
        "spool": body.spool,
        "spool_bytes": body.spool_bytes,
        "received_at": body.received_at,
    }


def describe(identity: BodyIdentity) -> str:
    if isinstance(identity, KeyIdentity):
        return f"the key {identity.key!r}"
    return f"the range {identity.rows} of lake {identity.lane.lake}, dataset {identity.lane.dataset}"


def has_batch(connection: sa.Connection, batch_id: str) -> bool:
    row = connection.execute(sa.select(receive_batch.c.id).where(receive_batch.c.batch_id == batch_id)).first()
    return row is not None


def has_ended(connection: sa.Connection, batch_id: str) -> bool:
    """Whether the ledger has the batch, and has moved its bodies to other batches or discarded them."""
    of_batch = sa.select(receive_batch.c.ended_at).where(receive_batch.c.batch_id == batch_id)
    return connection.execute(of_batch).scalar() is not None


_FINISHED = sa.or_(receive_batch.c.published_at.is_not(None), receive_batch.c.ended_at.is_not(None))


def settled_batches(connection: sa.Connection, dataset: DatasetId, batch_ids: Sequence[str]) -> set[str]:
    """The finished batches whose files are all recorded as removed: nothing needs their receipts any more."""
    files_left = (
        sa.select(received.c.id)
        .where(received.c.batch == receive_batch.c.id, received.c.spool_removed_at.is_(None))
        .correlate(receive_batch)
        .exists()
    )
    return finished_batches(connection, batch_ids, receive_batch.c.dataset_id == dataset, ~files_left)


def finished_batches(connection: sa.Connection, batch_ids: Sequence[str], *where: sa.ColumnElement[bool]) -> set[str]:
    """The batches that are published, or have ended and never will be."""
    query = sa.select(receive_batch.c.batch_id).where(_FINISHED, *where)
    return {row.batch_id for row in rows_with(connection, query, receive_batch.c.batch_id, batch_ids)}
