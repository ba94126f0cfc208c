"""Finds rows that share a sequence number, because others have copied rows, or written a number of ours.

The bounds in the manifests show which files cannot have such a row. Of the other files, only the sequence numbers are
read. Imports numpy, not PyIceberg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strandline.core.types import Seq
from strandline.iceberg.metadata.live_files import overlapping

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_READ_MAX = 10_000_000  # beyond it, the numbers are not read here: readers check the rows that they read anyway


@dataclass(frozen=True, slots=True)
class NumberedFile:
    index: int
    lo: int
    hi: int  # bounds of the sequence numbers; the whole sequence if the file has none
    numbers: int  # rows with a sequence number, before deletes
    is_suspect: bool  # whether its commit is not known to have added each sequence number once


def files_to_read(files: Sequence[NumberedFile]) -> tuple[list[NumberedFile], list[tuple[int, int]]]:
    """The files that may share a number with a suspect file, or have a number twice, and the ranges to search."""
    numbered = sorted((f for f in files if f.numbers), key=lambda f: (f.lo, f.hi))
    chosen: dict[int, NumberedFile] = {}
    spans: list[tuple[int, int]] = []
    for group in overlapping(numbered, lambda f: (f.lo, f.hi)):
        for suspect in (f for f in group if f.is_suspect):
            near = [f for f in group if f.lo <= suspect.hi and suspect.lo <= f.hi]
            if len(near) == 1 and suspect.numbers == suspect.hi - suspect.lo + 1:
                continue  # as many rows as numbers, and no other file has one of them
            spans.append((suspect.lo, suspect.hi))
            chosen.update((f.index, f) for f in near)
    return list(chosen.values()), spans


def count_duplicates(
    files: Sequence[NumberedFile],
    read: Callable[[NumberedFile], Iterator[NDArray[np.int64]]],
    is_owned: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
) -> tuple[int, Seq | None] | None:
    """How many rows there are beyond the first of each sequence number, and the lowest number that is on two rows. None
    if too many rows would have to be read. Only owned numbers count: rows with others are foreign anyway."""
    chosen, spans = files_to_read(files)
    if not chosen:
        return 0, None
    if sum(f.numbers for f in chosen) > ROWS_READ_MAX:
        return None
    lo, hi = min(s[0] for s in spans), max(s[1] for s in spans)
    parts = [part[(part >= lo) & (part <= hi)] for file in chosen for part in read(file)]
    numbers = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    distinct, counts = np.unique(numbers[is_owned(numbers)], return_counts=True)
    repeated = counts > 1
    return int((counts[repeated] - 1).sum()), Seq(int(distinct[repeated][0])) if repeated.any() else None
