"""What retention is told to do, and what it tells of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class RetainRule:
    older_than: timedelta
    column: str | None = None
    """None: by when rows were ingested."""
    on_lag: Literal["hold", "drop"] = "hold"
    drop_after: timedelta | None = None
    paused_sinks: Literal["count", "ignore"] = "count"


@dataclass(frozen=True, slots=True)
class HeldRows:
    sink: str
    rows: int
    """0: it is owed none of the rows that are due, and has not come past them all the same."""
    since: datetime
    """When retention first wanted to delete rows that this sink has not come past."""


@dataclass(frozen=True, slots=True)
class LostRows:
    sink: str
    rows: int
    lanes: int
    """In how many partitions."""


@dataclass(frozen=True, slots=True)
class Retained:
    cutoff: datetime
    column: str | None
    sealed: int | None
    due_up_to: int | None
    """The highest number of a row that is old enough; None where none is."""
    deleted_up_to: int | None
    deleted_rows: int
    floor_before: int | None
    floor: int | None
    held: tuple[HeldRows, ...]
    """Due, and a sink has not come past them: they stay."""
    lost: tuple[LostRows, ...]
    """Due, and deleted although a sink has not got them, because the rule says so."""
    released: tuple[str, ...]
    """Sinks for which nothing is held any more."""
