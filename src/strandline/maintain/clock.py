"""Keeps retention from running after the clock has jumped. `core/clock.py` detects the jump."""

from __future__ import annotations

from datetime import timedelta

from strandline.core.clock import SKIPS_MAX, Moment, find_jump
from strandline.core.errors import Skipped
from strandline.core.records.audit_events import Event
from strandline.core.types import DatasetId
from strandline.ledger import audit
from strandline.ledger.engine import Ledger
from strandline.ledger.maintain import clocks


def check(
    ledger: Ledger, dataset: DatasetId, now: Moment, *, jump: timedelta, accept: bool, rehearse: bool = False
) -> None:
    """Raises `Skipped` if the clock has jumped. The new time is stored either way, and the next run of this dataset
    compares with it. Each other dataset skips a run, too. A correct clock is trusted after at most two runs."""
    with ledger.read() as connection:
        last = clocks.get(connection, dataset)
        recorded = clocks.times_around_longest_gap(connection, None if last is None else last[0], now.wall)
        skipped = clocks.skipped_before(connection, dataset, runs_max=SKIPS_MAX)
    stored = None
    if last is not None:
        wall, boot, micros = last
        stored = Moment(wall, boot, None if micros is None else timedelta(microseconds=micros))
    jumped = find_jump(now, stored, recorded, jump=jump, skipped=skipped)
    if not rehearse:
        with ledger.write() as connection:
            up = None if now.up is None else int(now.up / timedelta(microseconds=1))
            clocks.put(connection, dataset, now.wall, now.boot, up)
            if jumped is not None:
                audit.record(
                    connection, Event.CLOCK_JUMPED, words=jumped.message, accepted=accept, believed=jumped.is_confirmed
                )
    if jumped is not None and not (accept or jumped.is_confirmed):
        raise Skipped(
            f"the clock may have jumped: {jumped.message}; nothing is deleted in this run",
            hint="If the time is right, run it again, or pass --accept-clock.",
        )
