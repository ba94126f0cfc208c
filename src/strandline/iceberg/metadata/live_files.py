"""What is known about the files of one snapshot without opening them. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveFile:
    location: str
    spec: int  # the partition spec that it was written with, which never changes
    partition: str  # as a path, to group by and to show; empty for an unpartitioned table
    bytes: int
    rows: int  # rows deleted since are included
    lo: int | None
    hi: int | None  # None if it has rows without a sequence number, or does not say
    deletes: int  # number of delete files and deletion vectors that apply to it
    # Whether its rows are known to be in the order of their sequence numbers. Ours are, as far as history tells whose
    # file it is. For other files nobody knows without opening them.
    ordered: bool
