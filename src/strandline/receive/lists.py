"""Lists of batches, beside the spool: `<table uuid>/<when it was formed>-<batch id>.json`.

Written once before the batch is reserved, and once more when its numbers are known. Names sort by age, so that those
that are too old are found without reading the others.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from strandline.durable import sync_data, sync_folder
from strandline.errors import StorageError
from strandline.ledger.listed import ListedBatch, ListedBody, TokenName
from strandline.receive.spool import LocalSpool, S3Spool, Spool
from strandline.types import Seq, SeqRange
from strandline.wire import Identity, KeyIdentity, LaneName, RangeIdentity

FOLDER = "_strandline/received"
_NOT_NOW = "The warehouse cannot be used right now: nothing is lost, try again."
_VERSION = 1


class Lists(Protocol):
    def write(self, table_uuid: str, batch: ListedBatch) -> None:
        """Durable when it returns. One without numbers never takes the place of another."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> ListedBatch: ...

    def remove(self, names: Iterable[str]) -> None: ...


def open_lists(spool: Spool) -> Lists:
    if isinstance(spool, S3Spool):
        prefix = spool.prefix.rpartition("_strandline/")[0]
        return S3Lists(spool, f"{prefix}{FOLDER}")
    if not isinstance(spool, LocalSpool):
        raise TypeError(f"no lists are kept beside {spool}")
    return LocalLists(Path(spool.warehouse))


# --- names -----------------------------------------------------------------------------------------------------------


def _name(table_uuid: str, batch: ListedBatch) -> str:
    return f"{table_uuid}/{_stamp(batch.created_at)}-{batch.batch_id}.json"


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%S%f")


def table_of(name: str) -> str:
    return name.partition("/")[0]


def batch_of(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".json").partition("-")[2]


def older_than(names: Iterable[str], moment: datetime) -> list[str]:
    return [n for n in names if n.rpartition("/")[2].partition("-")[0] < _stamp(moment)]


# --- what stands in them ---------------------------------------------------------------------------------------------


def note_of(identity: Identity, token: TokenName | None, rows: int, digest: str, size: int) -> bytes:
    """What a file of the spool says of itself."""
    return json.dumps(_body(ListedBody(identity, token, rows, digest, size, "", 0)), separators=(",", ":")).encode()


def body_of(note: bytes, spool: str, spool_bytes: int) -> ListedBody:
    """ValueError where it says nothing that can be read."""
    try:
        return _as_body(json.loads(note) | {"spool": spool, "spool_bytes": spool_bytes})
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{spool} does not say whose rows it holds") from e


def _body(body: ListedBody) -> dict[str, Any]:
    told: dict[str, Any] = {
        "rows": body.rows,
        "digest": body.digest,
        "size": body.size,
        "spool": body.spool,
        "spool_bytes": body.spool_bytes,
    }
    if isinstance(body.identity, RangeIdentity):
        lane, rows = body.identity.lane, body.identity.rows
        told["lane"] = [lane.lake, lane.instance, lane.generation, lane.dataset, lane.partition]
        told["range"] = [rows.lo, rows.hi]
    else:
        told["key"] = body.identity.key
        if body.token is not None:
            told["token"] = [body.token.id, body.token.name, body.token.created_at.isoformat()]
    return told


def _as_body(told: dict[str, Any]) -> ListedBody:
    identity: Identity
    token = None
    if "lane" in told:
        lo, hi = told["range"]
        identity = RangeIdentity(LaneName(*told["lane"]), SeqRange(Seq(lo), Seq(hi)))
    else:
        identity = KeyIdentity(told["key"])
        id, name, created_at = told["token"]
        token = TokenName(id, name, datetime.fromisoformat(created_at))
    return ListedBody(identity, token, told["rows"], told["digest"], told["size"], told["spool"], told["spool_bytes"])


def _encoded(batch: ListedBatch) -> bytes:
    told = {
        "version": _VERSION,
        "batch": batch.batch_id,
        "created_at": batch.created_at.isoformat(),
        "numbers": None if batch.numbers is None else [batch.numbers.lo, batch.numbers.hi],
        "bodies": [_body(body) for body in batch.bodies],
    }
    return json.dumps(told, separators=(",", ":")).encode()


def _decoded(name: str, content: bytes) -> ListedBatch:
    try:
        told = json.loads(content)
        if told["version"] != _VERSION:
            raise ValueError(f"version {told['version']}")
        numbers = told["numbers"]
        return ListedBatch(
            told["batch"],
            datetime.fromisoformat(told["created_at"]),
            tuple(map(_as_body, told["bodies"])),
            None if numbers is None else SeqRange(Seq(numbers[0]), Seq(numbers[1])),
        )
    except (KeyError, TypeError, ValueError) as e:
        raise StorageError(f"the list of a received batch, {name}, cannot be read: {e}") from e


# --- where they are --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalLists:
    warehouse: Path

    def write(self, table_uuid: str, batch: ListedBatch) -> None:
        path = self._path(_name(table_uuid, batch))
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        with _told("the list of a batch cannot be written"):
            self._make(path.parent)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(_encoded(batch))
                    file.flush()
                    sync_data(fd)
                if batch.numbers is None:
                    with suppress(FileExistsError):
                        os.link(temporary, path)
                else:
                    temporary.rename(path)
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(path.parent)

    def names(self) -> list[str]:
        with _told("the lists of batches cannot be read"):
            return sorted(f"{p.parent.name}/{p.name}" for p in (self.warehouse / FOLDER).glob("*/*.json"))

    def read(self, name: str) -> ListedBatch:
        with _told("the list of a batch cannot be read"):
            return _decoded(name, self._path(name).read_bytes())

    def remove(self, names: Iterable[str]) -> None:
        with _told("lists of batches cannot be removed"):
            for name in names:
                self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.warehouse / FOLDER / name

    def _make(self, folder: Path) -> None:
        """As the spool makes its folders: durably, and never the warehouse itself."""
        if folder.is_dir():
            return
        at = self.warehouse
        for part in folder.relative_to(self.warehouse).parts:
            above, at = at, at / part
            at.mkdir(exist_ok=True)
            sync_folder(above)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageError(f"{what}: {e.strerror or type(e).__name__}", hint=_NOT_NOW) from e


@dataclass(frozen=True, slots=True)
class S3Lists:
    spool: S3Spool
    """Whose connection is used."""
    prefix: str

    def write(self, table_uuid: str, batch: ListedBatch) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with _s3_told("the list of a batch cannot be written"), suppress(AlreadyExistsError):
            obstore.put(
                self.spool.store,
                f"{self.prefix}/{_name(table_uuid, batch)}",
                _encoded(batch),
                mode="create" if batch.numbers is None else "overwrite",
                use_multipart=False,
            )

    def names(self) -> list[str]:
        import obstore

        with _s3_told("the lists of batches cannot be read"):
            listed = obstore.list(self.spool.store, f"{self.prefix}/")
            return sorted(one["path"].removeprefix(f"{self.prefix}/") for some in listed for one in some)

    def read(self, name: str) -> ListedBatch:
        import obstore

        with _s3_told("the list of a batch cannot be read"):
            return _decoded(name, bytes(obstore.get(self.spool.store, f"{self.prefix}/{name}").bytes()))

    def remove(self, names: Iterable[str]) -> None:
        import obstore

        keys = [f"{self.prefix}/{name}" for name in names]
        with _s3_told("lists of batches cannot be removed"):
            if keys:
                obstore.delete(self.spool.store, keys)


@contextmanager
def _s3_told(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as e:
        raise StorageError(f"{what}: {type(e).__name__}", hint=_NOT_NOW) from e
