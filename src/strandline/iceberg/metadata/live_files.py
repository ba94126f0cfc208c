"""What is known about the files of one snapshot without opening them. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveFile:
    location: str
    spec: int
    """The partitioning it was written under; it stays under it."""
    partition: str
    """As a path, to group by and to show; empty where the table has no partitions."""
    bytes: int
    rows: int
    """Those that were deleted since count, too."""
    lo: int | None
    hi: int | None
    """None where it has rows without a number, or does not say."""
    deletes: int
    """Delete files and deletion vectors that apply to it."""
    ordered: bool
    """Whether it is known that its rows lie in the order of their numbers: ours do, as far as history tells whose it
    is. Of others nobody knows without opening them."""
