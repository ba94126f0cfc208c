"""Judges the clock of a run: to a node whose clock is ahead, new files look old, and other runs look dead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from strandline.core.clock import SKIPS_MAX, Moment, current_moment, find_jump
from strandline.ledger.engine import Connection
from strandline.ledger.maintain import clocks
from strandline.ledger.reconcile import reconcile_runs

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
APART_MIN = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class RunClock:
    moment: Moment
    doubt: str | None  # why it is not trusted
    is_settled: bool  # the doubt will be the same at the next check

    def remembered(self, *, act: bool) -> Mapping[str, Any] | None:
        """What later runs compare with. A report that has doubts leaves them to the next run that acts."""
        if self.doubt is not None and (self.is_settled or not act):
            return None
        up = None if self.moment.up is None else self.moment.up // _MICROSECOND
        wall = (self.moment.wall - _EPOCH) // _MICROSECOND
        return {"wall_us": wall, "boot": self.moment.boot, "up_us": up, "jumped": self.doubt is not None}


def read_clock(connection: Connection, now_ns: int, *, jump: timedelta, skew: timedelta) -> RunClock:
    """Judges as retention does. If the ledger's database is on another machine, its clock alone decides."""
    now = current_moment(_EPOCH + timedelta(microseconds=now_ns // 1_000))
    theirs = clocks.database_now(connection)
    if theirs is not None and now.wall - theirs > max(skew, APART_MIN):
        apart = (now.wall - theirs).total_seconds()
        return RunClock(now, f"this machine's clock is {apart:,.0f} s ahead of the ledger's database", True)
    before = reconcile_runs.clocks_before(connection)
    stored = _moment(before[0]) if before else None
    skipped = [_moment(clock).wall for clock in takewhile(lambda clock: clock["jumped"], before)][:SKIPS_MAX]
    seen = clocks.times_around_longest_gap(connection, None if stored is None else stored.wall, now.wall)
    jumped = find_jump(now, stored, seen, jump=jump, skipped=skipped[::-1])
    doubted = jumped is not None and not jumped.is_confirmed
    return RunClock(now, f"the clock may have jumped: {jumped.message}" if doubted and jumped else None, False)


def _moment(clock: Mapping[str, Any]) -> Moment:
    up = clock["up_us"]
    return Moment(_EPOCH + clock["wall_us"] * _MICROSECOND, clock["boot"], None if up is None else up * _MICROSECOND)
