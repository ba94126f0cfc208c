"""What the warehouse knows of received bodies, so that a ledger which is restored from an older copy learns it again.

A *note* stands in each spool file and says which body it is. A *receipt* is written before a batch of bodies can be
published, and names them all: with the table's history, it says which bodies the table holds. Receipts lie in
`_strandline/received/<table uuid>/<batch id>.json`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from strandline.core.errors import StorageError
from strandline.core.forward_protocol import Identity, KeyIdentity, LaneName, RangeIdentity
from strandline.core.settings import LakeConfig, resolve_secret
from strandline.core.types import Seq, SeqRange
from strandline.storage.bucket import bucket_store
from strandline.storage.durable import sync_data, sync_folder

if TYPE_CHECKING:
    from obstore.store import S3Store

FOLDER = "_strandline/received"
VERSION = 1
BODY_SUFFIX = ".body.arrow"
"""Of spool files that have a note."""
BATCH_PREFIX = "received-"
"""Of the ids of batches that were received. A table's history shows them."""


@dataclass(frozen=True, slots=True)
class TokenMark:
    """A token as the warehouse names it. Its number would not do: a restored ledger gives the same number out again."""

    name: str
    fingerprint: str
    """The beginning of its hash."""


@dataclass(frozen=True, slots=True)
class Note:
    identity: Identity
    owner: TokenMark | None
    """Whose key it is, or who brought it into the lane. None only in a receipt, for a range: its lane has an owner."""
    rows: int
    digest: str
    size: int
    """Bytes as they were sent."""

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
    bodies: tuple[ReceiptBody, ...]
    """By place."""

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
    """None where these are not the bytes of a note that this version knows."""
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
    identity: Identity
    if "key" in document:
        identity = KeyIdentity(document["key"])
    else:
        lo, hi = document["range"]
        identity = RangeIdentity(LaneName(*document["lane"]), SeqRange(Seq(lo), Seq(hi)))
    owner = None if document["token"] is None else TokenMark(*document["token"])
    return Note(identity, owner, document["rows"], document["digest"], document["size"])


# --- where receipts lie ---


class Receipts(Protocol):
    def write(self, table_uuid: str, receipt: Receipt) -> None:
        """Durable when it returns; one that is there already is replaced by the same."""

    def read(self, table_uuid: str, batch_id: str) -> Receipt | None:
        """None where there is none, or none that can be understood. `StorageError` where that cannot be told."""

    def listed(self, table_uuid: str) -> list[tuple[str, datetime]]:
        """Ids of batches, and when their receipts were written."""

    def tables(self) -> set[str]:
        """The uuids of tables that have receipts."""

    def remove(self, table_uuid: str, batch_ids: Iterable[str]) -> None: ...


def open_receipts(config: LakeConfig) -> Receipts:
    folder = config.warehouse_folder
    if folder is not None:
        return LocalReceipts(str(folder))
    w = config.settings.warehouse
    bucket, _, prefix = w.url.removeprefix("s3://").partition("/")
    folder_key = "/".join(filter(None, (prefix.strip("/"), FOLDER)))
    access, secret = resolve_secret(w.access_key), resolve_secret(w.secret_key)
    return S3Receipts(bucket, folder_key, w.region, w.endpoint, access, secret)


def _file_name(batch_id: str) -> str:
    if not batch_id.startswith(BATCH_PREFIX) or not batch_id.replace("-", "").replace(".", "").isalnum():
        raise StorageError(f"not the id of a received batch: {batch_id!r}")
    return f"{batch_id}.json"


def _batch_of(name: str) -> str | None:
    is_receipt = name.startswith(BATCH_PREFIX) and name.endswith(".json")
    return name.removesuffix(".json") if is_receipt else None


@dataclass(frozen=True, slots=True)
class LocalReceipts:
    warehouse: str

    def write(self, table_uuid: str, receipt: Receipt) -> None:
        folder = self._folder(table_uuid)
        path = folder / _file_name(receipt.batch_id)
        temporary = folder / f".{uuid.uuid4().hex}.tmp"
        with _told("a receipt cannot be written"):
            if not folder.is_dir():
                self._make(folder)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                with os.fdopen(os.dup(fd), "wb") as file:
                    file.write(receipt.to_bytes())
                sync_data(fd)
                temporary.rename(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            finally:
                os.close(fd)
            sync_folder(folder)

    def read(self, table_uuid: str, batch_id: str) -> Receipt | None:
        with _told("a receipt cannot be read"):
            try:
                return parse_receipt((self._folder(table_uuid) / _file_name(batch_id)).read_bytes())
            except FileNotFoundError:
                return None

    def listed(self, table_uuid: str) -> list[tuple[str, datetime]]:
        found = []
        with _told("receipts cannot be listed"):
            try:
                with os.scandir(self._folder(table_uuid)) as entries:
                    for entry in entries:
                        if (batch_id := _batch_of(entry.name)) is not None:
                            found.append((batch_id, datetime.fromtimestamp(entry.stat().st_mtime, UTC)))
            except FileNotFoundError:
                return []
        return sorted(found)

    def tables(self) -> set[str]:
        with _told("receipts cannot be listed"):
            try:
                with os.scandir(Path(self.warehouse, FOLDER)) as entries:
                    return {e.name for e in entries if e.is_dir() and self.listed(e.name)}
            except FileNotFoundError:
                return set()

    def remove(self, table_uuid: str, batch_ids: Iterable[str]) -> None:
        with _told("receipts cannot be removed"):
            for batch_id in batch_ids:
                (self._folder(table_uuid) / _file_name(batch_id)).unlink(missing_ok=True)

    def _folder(self, table_uuid: str) -> Path:
        return Path(self.warehouse, FOLDER, _plain(table_uuid))

    def _make(self, folder: Path) -> None:
        """Durably. Not the warehouse itself: where that is away, a folder in its place would hide it."""
        at = Path(self.warehouse)
        for part in folder.relative_to(at).parts:
            above, at = at, at / part
            at.mkdir(exist_ok=True)
            sync_folder(above)


@dataclass(frozen=True, slots=True)
class S3Receipts:
    bucket: str
    prefix: str
    region: str
    endpoint: str | None
    access_key: str | None = field(repr=False)
    secret_key: str | None = field(repr=False)

    def write(self, table_uuid: str, receipt: Receipt) -> None:
        import obstore

        with _told("a receipt cannot be written"):
            key = self._key(table_uuid, _file_name(receipt.batch_id))
            obstore.put(self._store(), key, receipt.to_bytes(), use_multipart=False)

    def read(self, table_uuid: str, batch_id: str) -> Receipt | None:
        import obstore
        from obstore.exceptions import NotFoundError

        with _told("a receipt cannot be read"):
            try:
                found = obstore.get(self._store(), self._key(table_uuid, _file_name(batch_id)))
                return parse_receipt(bytes(found.bytes()))
            except (NotFoundError, FileNotFoundError):
                return None

    def listed(self, table_uuid: str) -> list[tuple[str, datetime]]:
        import obstore

        found = []
        with _told("receipts cannot be listed"):
            for some in obstore.list(self._store(), self._key(table_uuid, "")):
                for meta in some:
                    if (batch_id := _batch_of(meta["path"].rpartition("/")[2])) is not None:
                        found.append((batch_id, meta["last_modified"]))
        return sorted(found)

    def tables(self) -> set[str]:
        import obstore

        with _told("receipts cannot be listed"):
            found = obstore.list_with_delimiter(self._store(), f"{self.prefix}/")
            return {folder.rstrip("/").rpartition("/")[2] for folder in found["common_prefixes"]}

    def remove(self, table_uuid: str, batch_ids: Iterable[str]) -> None:
        import obstore

        keys = [self._key(table_uuid, _file_name(batch_id)) for batch_id in batch_ids]
        with _told("receipts cannot be removed"):
            if keys:
                obstore.delete(self._store(), keys)

    def _key(self, table_uuid: str, name: str) -> str:
        return f"{self.prefix}/{_plain(table_uuid)}/{name}"

    def _store(self) -> S3Store:
        return bucket_store(self.bucket, self.region, self.endpoint, self.access_key, self.secret_key)


def _plain(table_uuid: str) -> str:
    if not table_uuid or "/" in table_uuid or table_uuid.startswith("."):
        raise StorageError(f"not a table's uuid: {table_uuid!r}")
    return table_uuid


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Without paths: what is said here may reach a client."""
    try:
        yield
    except OSError as e:
        raise StorageError(f"{what}: {e.strerror or type(e).__name__}", hint="Check the warehouse.") from e
    except Exception as e:
        if type(e).__module__.startswith("obstore"):
            raise StorageError(f"{what}: {type(e).__name__}", hint="Check the warehouse.") from e
        raise
