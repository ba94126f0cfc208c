"""The witness: one small object in the warehouse that holds the highest number ever taken.

A ledger can be lost or restored from an old copy; the witness cannot be restored with it, so a ledger that is behind
it knows that numbers were taken which it has never heard of. It is raised, by compare-and-set, before a reservation
commits. It is therefore never below the counter of a ledger that tells the truth.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from strandline.core.errors import LedgerBusy, OpeningNeeded, StorageError, WitnessUnreadable
from strandline.core.settings import LakeConfig, resolve_key
from strandline.ledger.lock_holder import find_holder
from strandline.storage.durable import sync_data, sync_folder

if TYPE_CHECKING:
    from obstore.store import S3Store

VERSION = 1
WITNESS_HINT = (
    "Restore the file `_strandline/witness` of the warehouse. If it is gone for good, "
    "`strandline ledger rebuild --lost-witness` makes a new one from the ledger and the tables."
)


@dataclass(frozen=True, slots=True)
class Mark:
    lake: str
    highest: int


class Witness(Protocol):
    def read(self) -> Mark:
        """What is written now. `WitnessUnreadable` where that cannot be told."""

    def create(self, mark: Mark) -> None:
        """Refused where there is one already."""

    def replace(self, mark: Mark) -> None:
        """Whatever is there: only for a witness that is lost or damaged, when a person asked for it."""

    def raise_to(self, highest: int, *, expected: int) -> None:
        """Durable when it returns. `OpeningNeeded` where the witness is not at `expected`."""


def open_witness(config: LakeConfig) -> Witness:
    folder = config.warehouse_folder
    if folder is not None:
        return LocalWitness(folder / "_strandline" / "witness")
    return S3Witness(config)


def behind(found: int, expected: int) -> OpeningNeeded:
    return OpeningNeeded(
        f"the witness stands at {found} and the ledger at {expected}: numbers were taken that this ledger "
        "does not know, or the warehouse was restored",
        hint="The next command that starts Spark settles it; `strandline ledger open` does only that.",
    )


_SLOT_BYTES = 512


class LocalWitness:
    """Two slots of one sector each, written in turn and in place: a torn write leaves the other one whole, and one
    `fdatasync` of a file that does not grow is the cheapest durable write there is."""

    def __init__(self, path: Path, lock_seconds_max: float = 30) -> None:
        self.path = path
        self._lock_seconds_max = lock_seconds_max

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            fd = os.open(self.path, os.O_RDWR)
        except FileNotFoundError as e:
            raise WitnessUnreadable(f"there is no witness at {self.path}", hint=WITNESS_HINT) from e
        except OSError as e:
            raise WitnessUnreadable(f"the witness {self.path} cannot be opened: {e}", hint=WITNESS_HINT) from e
        try:
            self._lock(fd)
            yield fd
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        """Others hold it for the time of one write. Whoever waits here may hold the ledger: not for long."""
        import fcntl  # not on Windows, where the command must still be able to say that it does not run there

        deadline = time.monotonic() + self._lock_seconds_max
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = find_holder(self.path)
                    hint = "Try again." if holder is None else holder.hint
                    raise LedgerBusy(f"the witness is held by {holder or 'another process'}", hint=hint) from None
            time.sleep(random.uniform(0.0005, 0.002))

    def _slots(self, fd: int) -> list[Mark | None]:
        both = os.pread(fd, 2 * _SLOT_BYTES, 0)
        return [_decode(both[:_SLOT_BYTES]), _decode(both[_SLOT_BYTES:])]

    def _newest(self, slots: list[Mark | None]) -> Mark:
        marks = [m for m in slots if m is not None]
        if not marks:
            raise WitnessUnreadable(f"the witness {self.path} is damaged", hint=WITNESS_HINT)
        return max(marks, key=lambda m: m.highest)

    def read(self) -> Mark:
        with self._locked() as fd:
            return self._newest(self._slots(fd))

    def create(self, mark: Mark) -> None:
        with self._written(mark) as temporary:
            try:
                os.link(temporary, self.path)  # unlike a rename, a link never replaces
            except FileExistsError as e:
                raise StorageError(f"there is a witness already at {self.path}") from e

    def replace(self, mark: Mark) -> None:
        with self._written(mark) as temporary:
            temporary.rename(self.path)

    @contextmanager
    def _written(self, mark: Mark) -> Iterator[Path]:
        """A new file beside the witness, whole and durable before it gets its name."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.pwrite(fd, _encode(mark) * 2, 0)
            os.fsync(fd)
            yield temporary
        finally:
            os.close(fd)
            temporary.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def raise_to(self, highest: int, *, expected: int) -> None:
        with self._locked() as fd:
            slots = self._slots(fd)
            newest = self._newest(slots)
            if newest.highest != expected:
                raise behind(newest.highest, expected)
            turn = 1 if slots[0] == newest else 0
            try:
                os.pwrite(fd, _encode(Mark(newest.lake, highest)), turn * _SLOT_BYTES)
                sync_data(fd)
            except OSError as e:
                raise StorageError(f"the witness cannot be written: {e}", hint="Free some disk space.") from e


def _encode(mark: Mark) -> bytes:
    body = json.dumps({"version": VERSION, "lake": mark.lake, "highest": mark.highest}).encode()
    line = b"%08x %s" % (zlib.crc32(body), body)
    return line.ljust(_SLOT_BYTES - 1) + b"\n"


def _decode(slot: bytes) -> Mark | None:
    crc, _, body = slot.strip().partition(b" ")
    try:
        if int(crc, 16) != zlib.crc32(body):
            return None
        return _mark_of(body)
    except ValueError:
        return None


def _mark_of(body: bytes) -> Mark:
    try:
        value = json.loads(body)
        version, mark = value["version"], Mark(str(value["lake"]), int(value["highest"]))
    except (ValueError, KeyError, TypeError) as e:
        raise WitnessUnreadable("the witness is damaged", hint=WITNESS_HINT) from e
    if version != VERSION:
        raise WitnessUnreadable(
            f"the witness has version {version}, this program knows {VERSION}",
            hint="Use the newer version of Strandline that wrote it.",
        )
    return mark


class S3Witness:
    """One object, replaced under `If-Match`. A nonce tells our own put from another's when an answer was lost."""

    def __init__(self, config: LakeConfig) -> None:
        warehouse = config.settings.warehouse
        bucket, _, prefix = warehouse.url.removeprefix("s3://").partition("/")
        self._key = "/".join(filter(None, (prefix.strip("/"), "_strandline/witness")))
        self._store = _s3_store(config, bucket)

    def read(self) -> Mark:
        body, _ = self._get()
        return _mark_of(body)

    def _get(self) -> tuple[bytes, str]:
        import obstore
        from obstore.exceptions import BaseError

        try:
            found = obstore.get(self._store, self._key)
            tag = found.meta["e_tag"]
            return bytes(found.bytes()), str(tag)
        except (BaseError, FileNotFoundError) as e:
            raise WitnessUnreadable(f"the witness cannot be read: {type(e).__name__}", hint=WITNESS_HINT) from e

    def create(self, mark: Mark) -> None:
        self._put(mark, "create")

    def replace(self, mark: Mark) -> None:
        self._put(mark, "overwrite")

    def _put(self, mark: Mark, mode: Literal["create", "overwrite"]) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            obstore.put(self._store, self._key, self._body(mark, uuid.uuid4().hex), mode=mode)
        except AlreadyExistsError as e:
            raise StorageError("there is a witness already in this bucket and prefix") from e
        except BaseError as e:
            raise StorageError(f"the witness cannot be written: {type(e).__name__}") from e

    def raise_to(self, highest: int, *, expected: int) -> None:
        import obstore
        from obstore.exceptions import BaseError

        body, tag = self._get()
        found = _mark_of(body)
        if found.highest != expected:
            raise behind(found.highest, expected)
        mine = self._body(Mark(found.lake, highest), uuid.uuid4().hex)
        try:
            obstore.put(self._store, self._key, mine, mode={"e_tag": tag})
        except BaseError as e:
            # Lost against another, or landed and the answer was lost: only the object itself can tell.
            now, _ = self._get()
            if now == mine:
                return
            if now != body:
                raise behind(_mark_of(now).highest, expected) from e
            raise StorageError(f"the witness cannot be written: {type(e).__name__}") from e

    @staticmethod
    def _body(mark: Mark, nonce: str) -> bytes:
        return json.dumps({"version": VERSION, "lake": mark.lake, "highest": mark.highest, "nonce": nonce}).encode()


def _s3_store(config: LakeConfig, bucket: str) -> S3Store:
    from obstore.store import S3Store

    warehouse = config.settings.warehouse
    options: dict[str, str] = {"region": warehouse.region}
    for name, value in (
        ("endpoint", warehouse.endpoint),
        ("access_key_id", resolve_key(warehouse.access_key)),
        ("secret_access_key", resolve_key(warehouse.secret_key)),
    ):
        if value is not None:
            options[name] = value
    # The witness is read and written while others wait for the ledger's lock. The look at it, the request, and the look
    # whether it landed fit into the time that they wait, with the last repeat of each.
    wait_seconds = config.settings.ledger.busy_timeout_seconds
    return S3Store(
        bucket,
        client_options={"allow_http": True, "timeout": timedelta(seconds=wait_seconds / 6)},
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=wait_seconds / 12)},
        virtual_hosted_style_request=False,
        **options,  # type: ignore[arg-type]
    )
