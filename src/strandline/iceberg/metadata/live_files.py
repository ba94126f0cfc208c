"""The files of a snapshot as its manifests describe them, and the groups that are rewritten together. Plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
RowOrder = Literal["kept", "sorted", "shuffled"]  # the rows are in order; sorted by one task; shuffled by ranges


@dataclass(frozen=True, slots=True)
class LiveFile:
    location: str
    spec: int  # the partition spec that it was written with, which never changes
    partition: str  # as a path, to group by and to show; empty for an unpartitioned table
    bytes: int
    rows: int  # rows deleted since are included
    lo: int | None
    hi: int | None  # None if it has rows without a sequence number, or no bounds
    deletes: int  # number of delete files and deletion vectors that apply to it
    # Whether its rows are known to be in the order of their sequence numbers. They are if history shows that Strandline
    # wrote the file. Other files would have to be opened.
    ordered: bool


@dataclass(frozen=True, slots=True)
class FilePart:
    """Neighbouring files of one partition, which become `outputs` new files."""

    spec: int
    partition: str
    files: tuple[LiveFile, ...]
    order: RowOrder
    outputs: int

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)


def overlapping(files: Iterable[T], bounds: Callable[[T], tuple[int, int]]) -> Iterator[list[T]]:
    """Groups of files, such that files of different groups share no sequence number. `files` must be ordered by their
    lowest number."""
    group: list[T] = []
    end = 0
    for file in files:
        lo, hi = bounds(file)
        if group and lo > end:
            yield group
            group = []
        end = max(end, hi) if group else hi
        group.append(file)
    if group:
        yield group
