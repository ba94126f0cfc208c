"""The newest status of the lake, its text and its metrics, for all who ask.

The lake is read only while somebody asks, by one reading at a time, and at most every `serve.refresh_seconds`. Metrics
are read apart: a collector asks for whole sinks, and must not pay for their partitions and for the tables."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Generic, Protocol, TypeVar

from strandline.core.documents import json_text
from strandline.core.errors import StorageError
from strandline.status.documents import lake_documents
from strandline.status.reconcile import NOT_YET
from strandline.status.replication import site_of
from strandline.status.report import LakeStatus
from strandline.status.status_text import LakeStatusText

READING_SECONDS_MAX = 30.0  # a client gets an answer, also while the lake gives none
_GZIP_LEVEL = 3  # a document of a megabyte in some 10 ms
_CUTS_MAX = 64  # texts for limited tokens that are kept of one reading


@dataclass(frozen=True, slots=True)
class StatusText:
    plain: bytes
    packed: bytes  # the same with gzip
    version: str  # the same as long as the text is


@dataclass(frozen=True)
class StatusSnapshot:
    """What one reading found."""

    status: LakeStatus
    began: float  # by the clock of the snapshots: everything that was committed before is in it
    arrived_rows: int | None = None  # grows by each row that comes in; None if nobody counted
    _spell: Callable[[LakeStatus], StatusText] = field(default_factory=lambda: Spelling().text, compare=False)
    _cuts: dict[tuple[str, ...], StatusText] = field(default_factory=dict, compare=False)

    @cached_property
    def text(self) -> StatusText:
        """Takes a while when it is first asked for: `StatusSnapshots.text_of` does that in a thread."""
        return self._spell(self.status)

    @property
    def is_spelled(self) -> bool:
        return "text" in self.__dict__

    def spelled(self) -> StatusSnapshot:
        _ = self.text
        return self

    def text_for(self, datasets: tuple[str, ...] | None) -> StatusText:
        """For a token that is limited to these datasets; None: for one that is not."""
        if datasets is None:
            return self.text
        if (found := self._cuts.get(datasets)) is None:
            cut = lake_documents.lake_status(only_of(self.status, datasets)) | {"sequence": None}
            found = _text_of(_bytes_of(json_text(cut)))
            if len(self._cuts) < _CUTS_MAX:
                self._cuts[datasets] = found
        return found


@dataclass(frozen=True, slots=True)
class GaugesSnapshot:
    """What one reading found, for Prometheus."""

    text: bytes
    began: float


class Spelling:
    """Spells one status after the other; what has not changed is not spelled again."""

    def __init__(self) -> None:
        self._texts = LakeStatusText()
        self._last: StatusText | None = None

    def text(self, found: LakeStatus) -> StatusText:
        plain, last = _bytes_of(self._texts.text(found)), self._last
        if last is None or last.plain != plain:
            last = self._last = _text_of(plain)
        return last


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # a stored name may be no valid text


def _text_of(plain: bytes) -> StatusText:
    return StatusText(plain, gzip.compress(plain, _GZIP_LEVEL, mtime=0), sha256(plain).hexdigest()[:16])


def only_of(found: LakeStatus, datasets: tuple[str, ...]) -> LakeStatus:
    """Only what concerns these datasets."""
    care, names = found.maintenance, frozenset(datasets)
    return replace(
        found,
        witness=None,
        problem=None,
        reconcile=NOT_YET,
        datasets=tuple(d for d in found.datasets if d.name in names),
        sinks=tuple(s for s in found.sinks if s.dataset in names),
        followers=tuple(f for f in found.followers if f.dataset in names),
        consumers=tuple(c for c in found.consumers if c.dataset in names),
        site=site_of(found.site, names),
        receive=tuple(r for r in found.receive or () if r.dataset in names) or None,
        maintenance=None
        if care is None
        else replace(
            care,
            rules_without_dataset=(),
            overridden=(),
            datasets=tuple(d for d in care.datasets if d.dataset in names),
        ),
    )


class Snapshot(Protocol):
    @property
    def began(self) -> float: ...


_S = TypeVar("_S", bound=Snapshot)


class Snapshots(Generic[_S]):
    """For the one event loop of a server."""

    def __init__(
        self,
        load: Callable[[float, _S | None], _S],
        in_thread: Callable[[Callable[[], _S]], Awaitable[_S]],
        *,
        measured: Callable[[float], None] = lambda seconds: None,
        refresh_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load` makes a reading that begins now, and gets the last one; it runs in a thread."""
        self._load, self._in_thread, self._refresh_seconds, self._clock = load, in_thread, refresh_seconds, clock
        self._measured = measured  # gets how long each reading took
        self._newest: _S | None = None
        self._changed_at = float("-inf")
        self._reading: asyncio.Task[_S] | None = None

    def age_seconds(self, snapshot: _S) -> float:
        return max(0.0, self._clock() - snapshot.began)

    def outdate(self) -> None:
        """This process has changed something: every later answer shows it."""
        self._changed_at = self._clock()

    async def newest(self) -> _S:
        """Not older than `refresh_seconds`; or up to twice as old, while a new reading is under way. Raises what the
        reading raises, if there is none that is as young."""
        wanted_from = self._changed_at
        found = self._newest
        if found is not None and found.began >= wanted_from:
            age = self.age_seconds(found)
            if age <= self._refresh_seconds:
                return found
            if age <= 2 * self._refresh_seconds:
                self._start_reading()
                return found
        while True:
            # One that began before the change does not show it; then another one follows.
            reading = self._start_reading()
            await asyncio.wait({reading}, timeout=READING_SECONDS_MAX)
            if not reading.done():  # it continues: the next request waits for the same one
                raise StorageError(
                    f"the lake has not been read for {READING_SECONDS_MAX:g} s",
                    hint="Check that the ledger and the catalog can be reached from the server.",
                )
            if (found := reading.result()).began >= wanted_from:
                return found

    def _start_reading(self) -> asyncio.Task[_S]:
        """The reading that is under way, or a new one."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_retrieve)
        return self._reading

    async def _read(self) -> _S:
        self._newest = await self._in_thread(self._load_measured)
        return self._newest

    def _load_measured(self) -> _S:
        began = self._clock()
        found = self._load(began, self._newest)
        self._measured(self._clock() - began)
        return found


class StatusSnapshots(Snapshots[StatusSnapshot]):
    def __init__(
        self,
        load: Callable[[], LakeStatus],
        in_thread: Callable[[Callable[[], StatusSnapshot]], Awaitable[StatusSnapshot]],
        *,
        count_rows: Callable[[], int | None] = lambda: None,
        measured: Callable[[float], None] = lambda seconds: None,
        refresh_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`count_rows` returns how many rows have come in."""
        spelling = Spelling()

        def read(began: float, last: StatusSnapshot | None) -> StatusSnapshot:
            found = StatusSnapshot(load(), began, count_rows(), spelling.text)
            # Clients that asked for the text of the last one will ask again.
            return found.spelled() if last is not None and last.is_spelled else found

        super().__init__(read, in_thread, measured=measured, refresh_seconds=refresh_seconds, clock=clock)

    async def text_of(self, snapshot: StatusSnapshot) -> StatusText:
        if not snapshot.is_spelled:
            await self._in_thread(snapshot.spelled)
        return snapshot.text


def _retrieve(reading: asyncio.Task[_S]) -> None:
    """Nobody may wait for a reading that fails: the next one who asks learns of the failure by trying again."""
    if not reading.cancelled():
        reading.exception()
