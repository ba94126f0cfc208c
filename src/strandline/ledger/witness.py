"""The witness: a small object in the warehouse that holds the highest sequence number ever reserved.

A ledger can be lost, or restored from an old copy. The witness is not restored with it. So a ledger whose counter is
below the witness lacks the records of numbers that were reserved. A compare-and-set raises the witness before a
reservation commits. Therefore the witness is never below the counter of a valid ledger.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from strandline.core.errors import (
    LedgerBusy,
    LedgerUnreadable,
    RefusedError,
    ResyncNeeded,
    StorageError,
    WitnessUnreadable,
    WrongLake,
)
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.sites.replication import FIRST_TERM, SiteRole
from strandline.ledger.lock_holder import LOCK_HELD, find_holder
from strandline.storage.durable import make_folders, sync_data, write_file
from strandline.storage.s3_client import RequestFailed, RequestFailure, S3Client
from strandline.storage.s3_settings import S3Settings, split_url, witness_limits

VERSION = 1
_CLOSED = 2  # the version of the witness of a left warehouse; older programs refuse it as too new
_PLACE_CHARS_MAX = 200
WITNESS_HINT = (
    "Restore the file `_strandline/witness` of the warehouse. If it is gone for good, "
    "`strandline ledger rebuild --lost-witness` makes a new one from the ledger and the tables."
)


@dataclass(frozen=True, slots=True)
class WitnessRecord:
    lake: str
    highest: int
    role: SiteRole = SiteRole.LEADER  # a ledger that is created again must not lead where the lost one followed
    term: int = FIRST_TERM

    def check_lake(self, of_ledger: str) -> None:
        """`WrongLake` if ledger and warehouse belong to different lakes."""
        if self.lake != of_ledger:
            raise WrongLake(
                f"the ledger is of lake {of_ledger}, the warehouse of lake {self.lake}",
                hint="Check ledger.url and warehouse.url in the settings.",
            )

    def check_follows(self, ledger_follows: bool) -> None:
        """`LedgerUnreadable` if the ledger is from a time before its site followed another one."""
        if self.role is SiteRole.FOLLOWER and not ledger_follows:
            raise LedgerUnreadable(
                "the witness says that this site follows another one, and the ledger says that it leads",
                hint="At a site that led before, run `strandline rejoin LEADER` again; otherwise `strandline follow "
                "init LEADER`. Nothing is lost.",
            )

    def check_leads(self, ledger_follows: bool, claimed_term: int | None) -> None:
        """`LedgerUnreadable` if the ledger is from a time before its site was promoted."""
        if self.role is SiteRole.LEADER and ledger_follows and claimed_term != self.term:
            raise LedgerUnreadable(
                f"the witness says that this site leads in term {self.term}, and the ledger is from before that",
                hint="Restore a newer copy of the ledger, or make one with `strandline ledger rebuild`.",
            )


class Witness(Protocol):
    def read(self) -> WitnessRecord:
        """Returns what is stored; `WitnessUnreadable` if it is missing or damaged."""

    def create(self, record: WitnessRecord) -> None:
        """`StorageError` if there is a witness."""

    def replace(self, record: WitnessRecord) -> None:
        """Overwrites the stored record. Only for a lost or damaged witness on demand, and when the site's role
        changes."""

    def raise_to(self, highest: int, *, expected: int) -> None:
        """Raises the witness, durably when it returns; `ResyncNeeded` if it is not at `expected`."""


def open_witness(config: LakeConfig) -> Witness:
    folder = config.warehouse_folder
    if folder is not None:
        return LocalWitness(folder / "_strandline" / "witness")
    return S3Witness(config)


def close_local_witness(folder: Path, place: str) -> None:
    """Closes the witness of a warehouse that its lake has left: nobody can rebuild a ledger from it or take sequence
    numbers by it."""
    closed = {"version": _CLOSED, "moved_to": place[:_PLACE_CHARS_MAX]}
    write_file(LocalWitness(folder / "_strandline" / "witness").path, _slot(json.dumps(closed).encode()) * 2)


def resync_needed(found: int, expected: int) -> ResyncNeeded:
    return ResyncNeeded(
        f"the witness is at {found} and the ledger at {expected}: sequence numbers were taken that this ledger "
        "does not know, or the warehouse was restored",
        hint="The next command that starts Spark settles it; `strandline ledger resync` does only that.",
    )


_SLOT_BYTES = 512


class LocalWitness:
    """A file with two slots of one sector each, which are written in turn and in place. A torn write leaves the other
    slot intact. One `fdatasync` of a file that does not grow is the cheapest durable write."""

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
        """Others hold the lock for one write. The caller may hold the ledger's lock, so it must not wait for long."""
        import fcntl  # missing on Windows, where the command must still start to say that it does not run there

        for attempt in replace(LOCK_HELD, seconds_max=self._lock_seconds_max).attempts():
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if attempt.is_last:
                    holder = find_holder(self.path)
                    hint = "Try again." if holder is None else holder.hint
                    raise LedgerBusy(f"the witness is locked by {holder or 'another process'}", hint=hint) from None

    def _slots(self, fd: int) -> list[WitnessRecord | None]:
        both = os.pread(fd, 2 * _SLOT_BYTES, 0)
        return [_decode(both[:_SLOT_BYTES]), _decode(both[_SLOT_BYTES:])]

    def _newest(self, slots: list[WitnessRecord | None]) -> WitnessRecord:
        records = [r for r in slots if r is not None]
        if not records:
            raise WitnessUnreadable(f"the witness {self.path} is damaged", hint=WITNESS_HINT)
        return max(records, key=lambda r: r.highest)

    def read(self) -> WitnessRecord:
        with self._locked() as fd:
            return self._newest(self._slots(fd))

    def create(self, record: WitnessRecord) -> None:
        try:
            self._write(record, replace=False)
        except FileExistsError as e:
            raise StorageError(f"there is a witness already at {self.path}") from e

    def replace(self, record: WitnessRecord) -> None:
        self._write(record, replace=True)

    def _write(self, record: WitnessRecord, *, replace: bool) -> None:
        make_folders(self.path.parent)
        write_file(self.path, _encode(record) * 2, replace=replace)

    def raise_to(self, highest: int, *, expected: int) -> None:
        with self._locked() as fd:
            slots = self._slots(fd)
            newest = self._newest(slots)
            if newest.highest != expected:
                raise resync_needed(newest.highest, expected)
            older = 1 if slots[0] == newest else 0
            try:
                os.pwrite(fd, _encode(replace(newest, highest=highest)), older * _SLOT_BYTES)
                sync_data(fd)
            except OSError as e:
                raise StorageError(f"the witness cannot be written: {e}", hint="Free some disk space.") from e


def _encode(record: WitnessRecord) -> bytes:
    return _slot(json.dumps(_document(record)).encode())


def _slot(body: bytes) -> bytes:
    line = b"%08x %s" % (zlib.crc32(body), body)
    return line.ljust(_SLOT_BYTES - 1) + b"\n"


def _document(record: WitnessRecord) -> dict[str, object]:
    return {
        "version": VERSION, "lake": record.lake, "highest": record.highest, "role": record.role.value,
        "term": record.term,
    }  # fmt: skip


def _decode(slot: bytes) -> WitnessRecord | None:
    crc, _, body = slot.strip().partition(b" ")
    try:
        if int(crc, 16) != zlib.crc32(body):
            return None
        return _parse_record(body)
    except ValueError:
        return None


def _parse_record(body: bytes) -> WitnessRecord:
    try:
        value = json.loads(body)
        if "moved_to" in value:
            raise WitnessUnreadable(
                f"the lake of this warehouse was moved to {value['moved_to']}",
                hint="Use the settings that name the new place.",
            )
        if "arriving" in value:
            raise WitnessUnreadable(
                "a migration is bringing a lake to this warehouse",
                hint="Finish it with the settings of the old place: `strandline migrate --to FILE`.",
            )
        role, term = SiteRole(value.get("role", SiteRole.LEADER.value)), int(value.get("term", FIRST_TERM))
        version, record = value["version"], WitnessRecord(str(value["lake"]), int(value["highest"]), role, term)
    except (ValueError, KeyError, TypeError) as e:
        raise WitnessUnreadable("the witness is damaged", hint=WITNESS_HINT) from e
    if version != VERSION:
        raise WitnessUnreadable(
            f"the witness has version {version}, this program knows {VERSION}",
            hint="Use the newer version of Strandline that wrote it.",
        )
    return record


class S3Witness:
    """One object, replaced with `If-Match`. A nonce identifies our own put when its response was lost."""

    def __init__(self, config: LakeConfig) -> None:
        warehouse = config.settings.warehouse
        self._bucket, prefix = split_url(warehouse.url)
        self._key = "/".join(filter(None, (prefix.strip("/"), "_strandline/witness")))
        limits = witness_limits(config.settings.ledger.busy_timeout_seconds)
        self._client = S3Client(S3Settings.of_warehouse(warehouse), limits)

    def read(self) -> WitnessRecord:
        body, _ = self._get()
        return _parse_record(body)

    def _get(self) -> tuple[bytes, str]:
        try:
            stored = self._client.get(self._bucket, self._key)
        except RequestFailed as e:
            raise WitnessUnreadable(f"the witness cannot be read: {e.message}", hint=WITNESS_HINT) from e
        if stored is None:
            raise WitnessUnreadable(f"there is no witness at s3://{self._bucket}/{self._key}", hint=WITNESS_HINT)
        return stored[0], str(stored[1]["ETag"])

    def create(self, record: WitnessRecord) -> None:
        mine = self._body(record)
        try:
            self._put(mine, IfNoneMatch="*")
        except RequestFailed as e:
            if e.failure is not RequestFailure.CONDITION:
                raise StorageError(f"the witness cannot be written: {e.message}") from e
            # An earlier attempt of ours may have landed without a response.
            if self._get()[0] != mine:
                raise StorageError("there is a witness already in this bucket and prefix") from e

    def check_free(self, lake: str) -> str | None:
        """Checks that a migration may bring this lake here. Returns the ETag of what an earlier attempt left, or None
        if there is no object. Raises RefusedError for any other witness, even one of this lake: numbers may have been
        taken by it. Raises StorageError if the witness cannot be read."""
        try:
            stored = self._client.get(self._bucket, self._key)
        except RequestFailed as e:
            raise StorageError(f"the witness of the new warehouse cannot be read: {e.message}") from e
        if stored is None:
            return None
        value = _json_object(stored[0])
        if "arriving" in value and value.get("lake") == lake:
            return str(stored[1]["ETag"])
        raise RefusedError(
            f"the new warehouse is in use: s3://{self._bucket}/{self._key} is the witness of lake {value.get('lake')} "
            f"at {value.get('highest')}",
            hint="Name another bucket or prefix. A lake that was there before must not be overwritten by an older one.",
        )

    def write_arriving(self, record: WitnessRecord, move_id: str) -> None:
        """Writes a witness by which nobody can take numbers before `settle`. Replaces that of an earlier attempt.
        Raises like `check_free`."""
        tag = self.check_free(record.lake)
        self._put_if(self._body(record, arriving=move_id), tag)

    def settle(self, record: WitnessRecord) -> None:
        """Makes this record the witness of a lake that has arrived, whichever attempt wrote the last one. Can be
        repeated. Raises like `check_free`."""
        stored = self._client.get(self._bucket, self._key)
        if stored is None or "arriving" in _json_object(stored[0]) or _parse_record(stored[0]) != record:
            self._put_if(self._body(record), self.check_free(record.lake))

    def _put_if(self, mine: bytes, tag: str | None) -> None:
        """Replaces the object with this ETag, or creates it where there is none."""
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            self._put(mine, **condition)
        except RequestFailed as e:
            # Our put may have landed, and its response was lost.
            if (stored := self._client.get(self._bucket, self._key)) is None or stored[0] != mine:
                raise StorageError(f"the witness cannot be written: {e.message}") from e

    def replace(self, record: WitnessRecord) -> None:
        try:
            self._put(self._body(record))
        except RequestFailed as e:
            raise StorageError(f"the witness cannot be written: {e.message}") from e

    def raise_to(self, highest: int, *, expected: int) -> None:
        body, tag = self._get()
        record = _parse_record(body)
        if record.highest != expected:
            raise resync_needed(record.highest, expected)
        mine = self._body(replace(record, highest=highest))
        try:
            self._put(mine, IfMatch=tag)
        except RequestFailed as e:
            # Another process was faster, or our put landed and its response was lost: read the object to find out.
            now, _ = self._get()
            if now == mine:
                return
            if now != body:
                raise resync_needed(_parse_record(now).highest, expected) from e
            raise StorageError(f"the witness cannot be written: {e.message}") from e

    def _put(self, body: bytes, **condition: str) -> None:
        self._client.retry("put_object", Bucket=self._bucket, Key=self._key, Body=body, **condition)

    @staticmethod
    def _body(record: WitnessRecord, **further: str) -> bytes:
        return json.dumps(_document(record) | further | {"nonce": uuid.uuid4().hex}).encode()


def _json_object(body: bytes) -> dict[str, object]:
    """The object; empty if the body is not a JSON object."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
