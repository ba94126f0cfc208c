"""Whether the clock can be trusted to say what is old. A clock that jumped makes retention delete what is young, or
keep what is old; the first cannot be undone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from strandline.errors import Skipped
from strandline.ledger import audit, clocks
from strandline.ledger.engine import Ledger
from strandline.types import DatasetId

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNSEEN_MAX = timedelta(days=1)
"""A machine that was off for longer than this is not told from one whose clock was set forward."""


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


def judge(now: Moment, stored: Moment | None, newest: datetime | None, *, jump: timedelta) -> Jump | None:
    """None if all is well. Within one boot the clock must have gone as fast as the machine. Beyond it, it must not be
    behind anything that was recorded, nor more than a day ahead of it."""
    if stored is not None and stored.boot == now.boot and stored.up is not None and now.up is not None:
        by = (now.wall - stored.wall) - (now.up - stored.up)
        return Jump(by, f"the clock was set {_way(by)} since {_spell(stored.wall)}") if abs(by) > jump else None
    known = [m for m in (newest, None if stored is None else stored.wall) if m is not None]
    if not known:
        return None
    by = now.wall - max(known)
    if by < -jump:
        return Jump(by, f"the clock is {_way(by)} of what was recorded at {_spell(max(known))}")
    if by > UNSEEN_MAX + jump:
        return Jump(by, f"nobody has seen this clock for {_length(by)}: the last that was recorded is of "
                    f"{_spell(max(known))}")  # fmt: skip
    return None


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


def check(
    ledger: Ledger, dataset: DatasetId, now: Moment, *, jump: timedelta, accept: bool, rehearse: bool = False
) -> None:
    """Skips the run after a jump. The new moment is stored either way, so that the next run of this dataset is judged
    from there; those of the others are skipped, too."""
    with ledger.read() as connection:
        found, newest = clocks.get(connection, dataset), clocks.newest(connection)
    stored = None
    if found is not None:
        wall, boot, micros = found
        stored = Moment(wall, boot, None if micros is None else timedelta(microseconds=micros))
    jumped = judge(now, stored, newest, jump=jump)
    if not rehearse:
        with ledger.write() as connection:
            up = None if now.up is None else int(now.up / timedelta(microseconds=1))
            clocks.put(connection, dataset, now.wall, now.boot, up)
            if jumped is not None:
                audit.record(connection, "clock_jumped", words=jumped.words, accepted=accept)
    if jumped is not None and not accept:
        raise Skipped(
            f"the clock has jumped: {jumped.words}; nothing is deleted in this run",
            hint="If the time is right, run it again, or say --accept-clock.",
        )
