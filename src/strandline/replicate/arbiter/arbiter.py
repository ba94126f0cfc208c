"""Reads and puts the arbiter's record. Each call has a time limit. A put whose outcome is unknown is read back."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from strandline.core import failpoints
from strandline.core.errors import StorageError, WrongLake
from strandline.core.sites.arbiter import Cell, CellMoved, CellUnclear, LeaderRecord, StoredRecord, decode, encode

_T = TypeVar("_T")
_UNANSWERED_MAX = 8  # calls that timed out and still run; with so many, further calls fail at once


@dataclass(frozen=True, slots=True)
class VersionedRecord:
    """The record, and the version that a put must name to replace it."""

    record: LeaderRecord
    version: str


@dataclass(frozen=True, slots=True)
class PutLanded:
    now: VersionedRecord


@dataclass(frozen=True, slots=True)
class PutRefused:
    """Somebody else changed the record first. Nothing was written."""

    now: VersionedRecord | None


@dataclass(frozen=True, slots=True)
class PutUnknown:
    """The arbiter did not answer the put, and reading it back failed or decided nothing: it may land, or have
    landed."""

    error: StorageError


PutOutcome = PutLanded | PutRefused | PutUnknown


class Arbiter:
    def __init__(self, cell: Cell, lake: str, *, call_seconds_max: float) -> None:
        self._cell = cell
        self._lake = lake
        self._limit = _TimeLimit(call_seconds_max, cell.place)

    @property
    def place(self) -> str:
        return self._cell.place

    def read(self) -> VersionedRecord | None:
        """Returns None if no leader has ever used this arbiter. Raises StorageError if it does not answer, and
        WrongLake."""
        stored = self._limit.run(self._cell.read)
        return None if stored is None else self._parse(stored)[0]

    def put(self, record: LeaderRecord, *, over: VersionedRecord | None) -> PutOutcome:
        """Replaces the record `over`; None: there must be none yet. Raises StorageError if the put was not sent."""
        nonce = uuid.uuid4().hex
        sent = replace(record, beat=0 if over is None else over.record.beat + 1)
        body, version = encode(sent, nonce), None if over is None else over.version
        failpoints.hit("arbiter.before_put")
        try:
            new = self._limit.run(lambda: self._cell.write(body, over=version), sending=True)
        except CellUnclear as e:
            return self._read_back(nonce, over, e)
        except CellMoved:
            return self._read_back(nonce, over, None)
        failpoints.hit("arbiter.after_put")
        return PutLanded(VersionedRecord(sent, new))

    def _read_back(self, nonce: str, over: VersionedRecord | None, unclear: CellUnclear | None) -> PutOutcome:
        try:
            stored = self._limit.run(self._cell.read)
        except StorageError as e:
            return PutUnknown(e)
        if stored is None:
            return PutRefused(None) if unclear is None else PutUnknown(unclear)
        now, found = self._parse(stored)
        if found == nonce:
            return PutLanded(now)
        if unclear is not None and over is not None and now.version == over.version:
            return PutUnknown(unclear)  # it may still be on its way
        return PutRefused(now)

    def _parse(self, stored: StoredRecord) -> tuple[VersionedRecord, str]:
        record, nonce = decode(stored.body)
        if record.lake != self._lake:
            raise WrongLake(
                f"the arbiter at {self.place} belongs to lake {record.lake}, and this is lake {self._lake}",
                hint="Check replication.arbiter: each lake needs one of its own.",
            )
        return VersionedRecord(record, stored.version), nonce


class _TimeLimit:
    """Ends each call in time, whatever a file system or a server does. A put that timed out can still land later."""

    def __init__(self, seconds: float, place: str) -> None:
        self._seconds = seconds
        self._place = place
        self._unanswered = threading.Semaphore(_UNANSWERED_MAX)

    def run(self, call: Callable[[], _T], *, sending: bool = False) -> _T:
        if not self._unanswered.acquire(blocking=False):
            raise StorageError(
                f"{_UNANSWERED_MAX} calls to the arbiter at {self._place} are still unanswered",
                hint="Check that it can be reached from here.",
            )
        results: list[_T] = []
        failures: list[BaseException] = []

        def work() -> None:
            try:
                results.append(call())
            except BaseException as e:
                failures.append(e)
            finally:
                self._unanswered.release()

        thread = threading.Thread(target=work, name="strandline-arbiter", daemon=True)
        thread.start()
        thread.join(self._seconds)
        if results:
            return results[0]
        if failures:
            raise failures[0]
        kind = CellUnclear if sending else StorageError
        raise kind(
            f"the arbiter at {self._place} did not answer within {self._seconds:g} seconds",
            hint="Check that it is reachable from here. Strandline tries again.",
        )
