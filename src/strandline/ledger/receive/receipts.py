"""Notes and receipts of received bodies in the warehouse, from which a restored ledger learns of bodies that it lacks.

A *note* in each spool file identifies its body. A *receipt* lists the bodies of a batch, and is written before the
batch can be published. Together with the table's history, receipts show which bodies the table has. They are stored in
`_strandline/received/<table uuid>/<batch id>.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from strandline.core.errors import StorageError
from strandline.core.forward_protocol import BodyIdentity, KeyIdentity, LaneName, RangeIdentity
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Seq, SeqRange
from strandline.storage.objects import ObjectStore, explained, open_objects

FOLDER = "_strandline/received"
VERSION = 1
BODY_SUFFIX = ".body.arrow"  # of spool files with a note
BATCH_PREFIX = "received-"  # of the ids of received batches, as in a table's history


@dataclass(frozen=True, slots=True)
class TokenFingerprint:
    """Identifies a token in the warehouse. Its id cannot: a restored ledger gives the same id to another token."""

    name: str
    fingerprint: str  # the beginning of its hash


@dataclass(frozen=True, slots=True)
class Note:
    identity: BodyIdentity
    owner: TokenFingerprint | None  # of the key or lane; None only in a receipt, for a range, whose lane has an owner
    rows: int
    digest: str
    size: int  # bytes as they were sent

    def to_bytes(self) -> bytes:
        return json.dumps({"version": VERSION, **_note_document(self)}).encode()


@dataclass(frozen=True, slots=True)
class ReceiptBody:
    note: Note
    spool: str
    spool_bytes: int
    place: int
    received_at: datetime


@dataclass(frozen=True, slots=True)
class Receipt:
    batch_id: str
    bodies: tuple[ReceiptBody, ...]  # by place

    @property
    def rows(self) -> int:
        return sum(body.note.rows for body in self.bodies)

    def to_bytes(self) -> bytes:
        bodies = [
            _note_document(b.note)
            | {"spool": b.spool, "spool_bytes": b.spool_bytes, "place": b.place, "at": b.received_at.isoformat()}
            for b in self.bodies
        ]
        return json.dumps({"version": VERSION, "batch": self.batch_id, "bodies": bodies}).encode()


def parse_note(data: bytes) -> Note | None:
    """None if this is not a note, or one of another version."""
    try:
        document = json.loads(data)
        return _note(document) if document["version"] == VERSION else None
    except (ValueError, KeyError, TypeError):
        return None


def parse_receipt(data: bytes) -> Receipt | None:
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            return None
        bodies = tuple(
            ReceiptBody(_note(b), b["spool"], b["spool_bytes"], b["place"], datetime.fromisoformat(b["at"]))
            for b in document["bodies"]
        )
        return Receipt(document["batch"], bodies)
    except (ValueError, KeyError, TypeError):
        return None


def _note_document(note: Note) -> dict[str, Any]:
    document: dict[str, Any] = {
        "token": None if note.owner is None else [note.owner.name, note.owner.fingerprint],
        "rows": note.rows,
        "digest": note.digest,
        "size": note.size,
    }
    if isinstance(note.identity, KeyIdentity):
        return document | {"key": note.identity.key}
    lane, rows = note.identity.lane, note.identity.rows
    named = [lane.lake, lane.instance, lane.generation, lane.dataset, lane.partition]
    return document | {"lane": named, "range": [rows.lo, rows.hi]}


def _note(document: dict[str, Any]) -> Note:
    identity: BodyIdentity
    if "key" in document:
        identity = KeyIdentity(document["key"])
    else:
        lo, hi = document["range"]
        identity = RangeIdentity(LaneName(*document["lane"]), SeqRange(Seq(lo), Seq(hi)))
    owner = None if document["token"] is None else TokenFingerprint(*document["token"])
    return Note(identity, owner, document["rows"], document["digest"], document["size"])


# --- storage ---


@dataclass(frozen=True, slots=True)
class Receipts:
    objects: ObjectStore

    def write(self, table_uuid: str, receipt: Receipt) -> None:
        """Writes the receipt, durably when it returns. Idempotent."""
        with _explained("a receipt cannot be written"):
            self.objects.put(_name(table_uuid, receipt.batch_id), receipt.to_bytes())

    def read(self, table_uuid: str, batch_id: str) -> Receipt | None:
        """None if the receipt is missing or cannot be parsed; `StorageError` if storage cannot be read."""
        with _explained("a receipt cannot be read"):
            data = self.objects.get(_name(table_uuid, batch_id))
        return None if data is None else parse_receipt(data)

    def list_batches(self, table_uuid: str) -> list[tuple[str, datetime]]:
        """The ids of batches, and when their receipts were written."""
        with _explained("receipts cannot be listed"):
            objects = self.objects.list_below(_folder(table_uuid))
        named = ((_batch_of(stored.name.rpartition("/")[2]), stored.modified) for stored in objects)
        return sorted((batch_id, modified) for batch_id, modified in named if batch_id is not None)

    def tables(self) -> set[str]:
        """The uuids of tables that have receipts."""
        with _explained("receipts cannot be listed"):
            return self.objects.folders(FOLDER)

    def remove(self, table_uuid: str, batch_ids: Iterable[str]) -> None:
        with _explained("receipts cannot be removed"):
            self.objects.remove([_name(table_uuid, batch_id) for batch_id in batch_ids])


def open_receipts(config: LakeConfig) -> Receipts:
    return Receipts(open_objects(config))


def _explained(what: str) -> AbstractContextManager[None]:
    return explained(what, hint="Check the warehouse.")


def _folder(table_uuid: str) -> str:
    if not table_uuid or "/" in table_uuid or table_uuid.startswith("."):
        raise StorageError(f"not a table's uuid: {table_uuid!r}")
    return f"{FOLDER}/{table_uuid}"


def _name(table_uuid: str, batch_id: str) -> str:
    if not batch_id.startswith(BATCH_PREFIX) or not batch_id.replace("-", "").replace(".", "").isalnum():
        raise StorageError(f"not the id of a received batch: {batch_id!r}")
    return f"{_folder(table_uuid)}/{batch_id}.json"


def _batch_of(name: str) -> str | None:
    is_receipt = name.startswith(BATCH_PREFIX) and name.endswith(".json")
    return name.removesuffix(".json") if is_receipt else None
