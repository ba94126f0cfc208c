"""Keeps findings in files instead of memory, for lakes that may have tens of millions of them."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from strandline.reconcile.compare.findings import Order

SORTED_AT_ONCE = 50_000
_READ_AT_ONCE = 500


class Spill:
    """Values in sorted files, read as one sorted sequence. The files are deleted with the object."""

    def __init__(self, values: Iterable[Any], order: Order) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="strandline-reconcile-")
        self._order = order
        self._files: list[Path] = []
        waiting = iter(values)
        while some := sorted(islice(waiting, SORTED_AT_ONCE), key=order):
            self._files.append(Path(self._folder.name, str(len(self._files))))
            with self._files[-1].open("wb") as file:
                for at in range(0, len(some), _READ_AT_ONCE):
                    pickle.dump(some[at : at + _READ_AT_ONCE], file, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[Any]:
        return heapq.merge(*map(_read, self._files), key=self._order)


def _read(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        while True:
            try:
                yield from pickle.load(file)
            except EOFError:
                return
