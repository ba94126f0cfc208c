"""Reports how many bytes of a file tasks have read.

Tasks write their positions into a small file that the driver reads. On another machine that file does not exist, and
nothing is reported: an ingest must not fail for lack of progress reports.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.core.polling import polled

OnBytes = Callable[[int], None]
_SLOT = struct.Struct("<q")
_POLL_SECONDS = 0.25


class Positions:
    """A file with one slot for each range: how many bytes of the range were read."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="strandline-read-", delete=False)  # noqa: SIM115
        self._slots = 0

    @property
    def path(self) -> str:
        return self._file.name

    def take(self, count: int) -> int:
        """Allocates so many slots. Returns the first one."""
        first = self._slots
        self._slots += count
        os.ftruncate(self._file.fileno(), _SLOT.size * self._slots)
        return first

    def clear(self) -> None:
        """Sets all slots to 0, for a step that reads the file again."""
        os.pwrite(self._file.fileno(), bytes(_SLOT.size * self._slots), 0)

    def read_bytes(self) -> int:
        content = os.pread(self._file.fileno(), _SLOT.size * self._slots, 0)
        return sum(value for (value,) in _SLOT.iter_unpack(content))

    def close(self) -> None:
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


@contextmanager
def watch_positions(on_bytes: OnBytes | None, other_bytes: Callable[[], int] = lambda: 0) -> Iterator[Positions | None]:
    """Reports several times a second, and at the end, how many bytes were read. `other_bytes` returns how many were
    read without a slot."""
    if on_bytes is None:
        yield None
        return
    positions = Positions()

    def report_sum() -> None:
        on_bytes(positions.read_bytes() + other_bytes())

    try:
        with polled(report_sum, seconds=_POLL_SECONDS, name="strandline-progress"):
            yield positions
    finally:
        report_sum()
        positions.close()


# --- in a task ---

_open_slots: list[tuple[int, int]] = []  # descriptor and slot of the present range; a worker reads one range at a time


@contextmanager
def report_to(path: str | None, slot: int) -> Iterator[None]:
    """Lets `report` write to this slot. If the file does not exist on this machine, `report` does nothing."""
    try:
        file = None if path is None else os.open(path, os.O_WRONLY)
    except OSError:
        file = None
    if file is None:
        yield
        return
    _open_slots.append((file, slot))
    try:
        yield
    finally:
        _open_slots.remove((file, slot))
        os.close(file)


def report(count: int) -> None:
    """Reports that so many bytes of the present range were read."""
    for file, slot in _open_slots[-1:]:
        os.pwrite(file, _SLOT.pack(count), _SLOT.size * slot)
