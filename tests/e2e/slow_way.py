"""A way to an arbiter's folder on which every call waits until the test lets it go on, as on a network file system
whose server does not answer. What was under way arrives late then."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

NEXT_VERSIONS = 4  # that may be put while the way becomes slow


class SlowWay:
    """Takes the place of the link `way`, which leads to `arbiter`. Each version is a pipe there: who opens it waits."""

    def __init__(self, way: Path, arbiter: Path, lake: str) -> None:
        self._way, self._arbiter, self._lake = way, arbiter, lake
        newest = max(int(file.name.split(".")[-2]) for file in arbiter.glob(f"{lake}.*.json"))
        self._folder = way.with_name(f"slow-{newest}")
        self._folder.mkdir()
        self._versions = range(newest, newest + NEXT_VERSIONS + 1)
        for version in self._versions:
            os.mkfifo(self._folder / self._name(version))
        self._lead_to(self._folder)

    def end(self) -> int:
        """Every call goes on, in the arbiter's folder. Returns how many had waited."""
        self._lead_to(self._arbiter)
        return sum(self._release(version) for version in self._versions)

    def _lead_to(self, folder: Path) -> None:
        link = self._way.with_suffix(".new")
        link.symlink_to(folder)
        link.replace(self._way)

    def _name(self, version: int) -> str:
        return f"{self._lake}.{version}.json"

    def _release(self, version: int) -> int:
        released = 0
        while (pipe := _open_if_awaited(self._folder / self._name(version))) is not None:
            released += 1
            with suppress(BrokenPipeError, FileNotFoundError):  # nobody waits any more; it has not been put
                os.write(pipe, (self._arbiter / self._name(version)).read_bytes())
            os.close(pipe)
            time.sleep(0.02)
        return released


def _open_if_awaited(pipe: Path) -> int | None:
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as e:
        if e.errno != errno.ENXIO:
            raise
        return None
