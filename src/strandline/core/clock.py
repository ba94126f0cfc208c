"""Whether the clock can be trusted to say what is old. A clock that jumped makes whoever deletes by age delete what is
young, or keep what is old; the first cannot be undone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SILENCE_MAX = timedelta(hours=12)
"""Beyond a boot, a stretch of time in which nobody recorded anything may be a machine that was off, or a clock that was
set forward: a lake that is silent for longer costs a run. Half a day, so that a jump of a day is seen in any case."""
SILENCE_AGAIN_MAX = timedelta(days=1)
"""After a run that was skipped, so that a lake which is touched once a day, from another machine each time, is not
skipped for ever."""
SKIPS_MAX = 2
"""In a row, for a silence. A lake that is touched more rarely, from another machine each time, would be skipped for
ever: when so many runs have seen time go on, the next one believes it."""


@dataclass(frozen=True, slots=True)
class Moment:
    wall: datetime
    boot: str | None
    """Which boot of which machine it is; None where the system does not tell."""
    up: timedelta | None
    """For how long that one has been up, asleep or not."""


@dataclass(frozen=True, slots=True)
class Jump:
    by: timedelta
    words: str
    believed: bool = False
    """It looks like one, and runs that were skipped before say the same."""


def judge(
    now: Moment, stored: Moment | None, seen: Sequence[datetime], *, jump: timedelta, skipped: Sequence[datetime] = ()
) -> Jump | None:
    """None if all is well. Within one boot the clock must have gone as fast as the machine. Beyond it, it must not be
    behind anything that was recorded, and what was recorded must tell of all the time since the last run: a moment that
    the same clock recorded after it was set forward proves nothing, but what it left out shows.

    `seen` is what was recorded, as far as it matters: the ends of the longest silence, and the newest of all. `skipped`
    are the runs that were skipped right before this one, the oldest first. Once a run was skipped, what is stamped
    ahead of it and of this one is not believed any more: a clock that is behind makes retention keep rows. That it is
    ahead, and deletes them, is believed later, and only of runs that saw time go on."""
    if stored is not None and stored.boot == now.boot and stored.up is not None and now.up is not None:
        by = (now.wall - stored.wall) - (now.up - stored.up)
        return Jump(by, f"the clock was set {_way(by)} since {_spell(stored.wall)}") if abs(by) > jump else None
    known = sorted(seen) if stored is None else [stored.wall, *sorted(m for m in seen if m > stored.wall)]
    if not known:
        return None
    by = now.wall - known[-1]
    behind = None
    if by < -jump:
        settled = bool(skipped) and stored is not None and now.wall >= stored.wall - jump
        behind = Jump(by, f"the clock is {_way(by)} of what was recorded at {_spell(known[-1])}", believed=settled)
        if not settled:
            return behind
        known = [m for m in known if m <= now.wall + jump]
    silence, since = max((b - a, a) for a, b in itertools.pairwise([*known, max(now.wall, known[-1])]))
    longest = SILENCE_AGAIN_MAX + jump if skipped else max(SILENCE_MAX, jump)
    if silence <= longest:
        return behind
    goes_on = all(a <= b + jump for a, b in itertools.pairwise([*skipped, now.wall]))
    words = f"nothing was recorded for {_length(silence)} after {_spell(since)}: a machine that was off, or a clock "
    return Jump(silence, words + "that was set forward", believed=goes_on and len(skipped) >= SKIPS_MAX)


def _way(by: timedelta) -> str:
    return f"{_length(abs(by))} {'ahead' if by > timedelta() else 'behind'}"


def _length(by: timedelta) -> str:
    hours = by.total_seconds() / 3600
    return f"{hours / 24:,.1f} days" if hours >= 48 else f"{hours:,.1f} hours"


def _spell(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def here(wall: datetime) -> Moment:
    """This machine's."""
    try:
        boot, up = _BOOT_ID.read_text("ascii").strip(), time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return Moment(wall, None, None)
    return Moment(wall, boot or None, timedelta(seconds=up) if boot else None)
