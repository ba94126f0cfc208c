"""Decides whether the clock can be trusted to say what is old. After a jump of the clock, a job that deletes by age
would delete young things, which cannot be undone, or keep old ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from strandline.core.text.wording import duration, moment

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# After a reboot, a gap without any record may mean that the machine was off, or that the clock was set forward. So a
# longer gap makes a run skip. Half a day, so that a jump of a day is always noticed.
GAP_MAX = timedelta(hours=12)
# The limit after a skipped run: a lake that is used once a day, from another machine each time, must not skip forever.
GAP_AFTER_SKIP_MAX = timedelta(days=1)
# The most runs in a row that skip because of a gap. A lake that is used more rarely, from another machine each time,
# would skip forever. After so many runs whose times only rise, the next one trusts the clock.
SKIPS_MAX = 2


@dataclass(frozen=True, slots=True)
class Moment:
    wall: datetime
    boot: str | None  # identifies the machine's boot; None if the system does not provide it
    up: timedelta | None  # uptime, including sleep


@dataclass(frozen=True, slots=True)
class Jump:
    by: timedelta
    message: str
    is_confirmed: bool = False  # runs that were skipped before saw the same time: the clock is used all the same


def find_jump(
    now: Moment, stored: Moment | None, seen: Sequence[datetime], *, jump: timedelta, skipped: Sequence[datetime] = ()
) -> Jump | None:
    """Returns the jump of the clock, or None if there is none.

    Within one boot, the clock must have advanced as much as the uptime. After a reboot, it must not be behind any
    recorded time, and the records must have no long gap since the last run: times that were recorded after the clock
    was set forward prove nothing, but the gap that they leave shows.

    `seen` are the recorded times that matter: the ends of the longest gap, and the newest. `skipped` are the runs that
    were skipped right before this one, oldest first. Once a run was skipped, recorded times ahead of it and of this run
    are no longer trusted: a clock that is behind makes retention keep rows, which is safe. A clock that is ahead makes
    retention delete rows, so it is trusted later, and only if the times of the skipped runs rise."""
    if stored is not None and stored.boot == now.boot and stored.up is not None and now.up is not None:
        by = (now.wall - stored.wall) - (now.up - stored.up)
        return Jump(by, f"the clock was set {_direction(by)} since {moment(stored.wall)}") if abs(by) > jump else None
    known = sorted(seen) if stored is None else [stored.wall, *sorted(m for m in seen if m > stored.wall)]
    if not known:
        return None
    by = now.wall - known[-1]
    behind = None
    if by < -jump:
        settled = bool(skipped) and stored is not None and now.wall >= stored.wall - jump
        message = f"the clock is {_direction(by)} of what was recorded at {moment(known[-1])}"
        behind = Jump(by, message, is_confirmed=settled)
        if not settled:
            return behind
        known = [m for m in known if m <= now.wall + jump]
    gap, since = max((b - a, a) for a, b in itertools.pairwise([*known, max(now.wall, known[-1])]))
    longest = GAP_AFTER_SKIP_MAX + jump if skipped else max(GAP_MAX, jump)
    if gap <= longest:
        return behind
    rises = all(a <= b + jump for a, b in itertools.pairwise([*skipped, now.wall]))
    message = (
        f"nothing was recorded for {duration(gap.total_seconds())} after {moment(since)}: the machine was off, or its "
        "clock was set forward"
    )
    return Jump(gap, message, is_confirmed=rises and len(skipped) >= SKIPS_MAX)


def _direction(by: timedelta) -> str:
    return f"{duration(abs(by).total_seconds())} {'ahead' if by > timedelta() else 'behind'}"


def elapsed_seconds() -> float:
    """A clock that only moves forward and also counts the time during which the machine sleeps: a lease must not
    survive a suspend."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return time.monotonic()


def current_moment(wall: datetime) -> Moment:
    """This machine's clock."""
    try:
        boot, up = _BOOT_ID.read_text("ascii").strip(), time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return Moment(wall, None, None)
    return Moment(wall, boot or None, timedelta(seconds=up) if boot else None)
