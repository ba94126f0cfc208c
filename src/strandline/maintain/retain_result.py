"""What a run of retention has done, or would do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class HeldRows:
    sink: str  # or `consumer NAME`, `follower NAME`, or `the leader's sink NAME`
    rows: int  # 0: the sink lacks none of the due rows, but its watermark is still below them
    since: datetime  # when retention first wanted to delete rows above this sink's watermark


@dataclass(frozen=True, slots=True)
class LostRows:
    sink: str  # or `consumer NAME`, `follower NAME`, or `the leader's sink NAME`
    rows: int
    lanes: int  # the number of partitions


@dataclass(frozen=True, slots=True)
class Retained:
    cutoff: datetime
    column: str | None
    sealed: int | None
    due_up_to: int | None  # the highest sequence number that is old enough; None if there is none
    deleted_up_to: int | None
    deleted_rows: int
    floor_before: int | None
    floor: int | None
    held: tuple[HeldRows, ...]  # due rows that stay, because a sink's watermark is below them
    lost: tuple[LostRows, ...]  # due rows that a sink lacks and that were deleted, because the rule says so
    released: tuple[str, ...]  # sinks for which nothing is held any more
