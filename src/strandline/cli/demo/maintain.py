"""Compaction, retention and expiry between ticks, with a paused sink: a part of `strandline demo`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from strandline.cli.demo.delivery import SINKS, consumed, deliver, rows_in_lake, rows_text
from strandline.cli.demo.scene import DATASET, Demo, events, ingest, write
from strandline.cli.render import maintain
from strandline.core.text.wording import plural
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain.runs import MaintenanceRun

PAUSED = "partner"
LATE_FILES, LATE_ROWS_EACH, LATE_ID = 6, 50, 400_001
LATE_ROWS = LATE_FILES * LATE_ROWS_EACH
OLD_IDS = 1_000  # the first so many events are older than the limit of retention
OLD_ROWS = OLD_IDS - 1  # one of them was not ingested: its line was broken
SUNDAY_ROWS, SUNDAY_ID = 200, 300_001
BOUND = datetime(2026, 1, 5, 8, 0, tzinfo=UTC) + timedelta(seconds=7 * OLD_IDS, milliseconds=1)


def maintain_between_ticks(demo: Demo) -> None:
    _ingest_late_rows(demo)
    _compact(demo)
    _retain(demo)
    _expire(demo)


def _ingest_late_rows(demo: Demo) -> None:
    with demo.step(
        f"Pause a sink; then {LATE_ROWS} late rows arrive in {LATE_FILES} small files, and the other gets them"
    ):
        demo.lake.delivery.pause(PAUSED)
        demo.say("Ingesting small files")
        for n in range(LATE_FILES):
            name, lines = f"late{n}.jsonl", events(LATE_ID + n * LATE_ROWS_EACH, LATE_ROWS_EACH)
            old = [json.dumps(json.loads(line) | {"at": "2026-01-01T00:00:00Z"}) for line in lines]
            write(demo.home / name, old)
            ingest(demo, name)
        demo.lake.tick("archive")
        behind = {s.name: s.sink_lag_rows for s in demo.lake.status().sinks}
        demo.claim(f"{PAUSED} is {rows_text(behind[PAUSED])} behind", behind == {"archive": 0, PAUSED: LATE_ROWS})


def _show_run(demo: Demo, run: MaintenanceRun) -> None:
    for line in maintain.render_run(run):
        demo.show(line)


def _compact(demo: Demo) -> None:
    with demo.step("Compact"):
        demo.say("Writing small files anew")
        before = rows_in_lake(demo)
        done = demo.lake.maintenance.compact(DATASET)
        _show_run(demo, done.run)
        demo.claim(
            f"{plural(done.result.files_before, 'file')} became {done.result.files_after:,}, with the same "
            f"{rows_text(before)}",
            done.result.files_after < done.result.files_before and rows_in_lake(demo) == before,
        )


def _retain(demo: Demo) -> None:
    with demo.step(f"Retain: delete events of before {BOUND:%d %B, %H:%M}; the late rows are, and {PAUSED} lacks them"):
        demo.say("Deleting old rows")
        before = rows_in_lake(demo) or 0
        done = demo.lake.maintenance.retain(DATASET, older_than=utc_now() - BOUND, column="at")
        _show_run(demo, done.run)
        held = {s.name: s.held_rows for s in demo.lake.status().sinks}
        demo.claim(
            f"{OLD_ROWS:,} rows that every sink has are gone, {LATE_ROWS} that one lacks are held for it",
            done.result.deleted_rows == OLD_ROWS == before - (rows_in_lake(demo) or 0)
            and held == {"archive": 0, PAUSED: LATE_ROWS},
        )


def _expire(demo: Demo) -> None:
    with demo.step("Expire: only the newest snapshot stays"):
        demo.say("Expiring snapshots")
        before = rows_in_lake(demo)
        done = demo.lake.maintenance.expire(DATASET, older_than=timedelta(0), keep_min=1)
        _show_run(demo, done.run)
        left = done.result.snapshots_before - done.result.snapshots_expired
        demo.claim(
            f"{plural(done.result.snapshots_expired, 'snapshot', 'is')} gone, {left} is left, and every row is there",
            done.result.snapshots_expired > 0 and left == 1 and rows_in_lake(demo) == before,
        )


def go_on_after_maintenance(demo: Demo) -> None:
    with demo.step(f"{PAUSED} continues, from the compacted table"):
        ever = len(list(consumed(demo, "archive")))
        demo.lake.delivery.resume(PAUSED)
        demo.say("Delivering")
        deliver(demo)
        for name in SINKS:
            ids = list(consumed(demo, name))
            demo.claim(f"{name}: {plural(len(ids), 'row')}, each exactly once", len(ids) == len(set(ids)) == ever)
        demo.say("Reading what the sinks hold")
        demo.claim("verify: gaps 0, duplicates 0", demo.lake.delivery.verify().ok)
        demo.say("Deleting old rows")
        before = rows_in_lake(demo) or 0
        again = demo.lake.maintenance.retain(DATASET, older_than=utc_now() - BOUND, column="at")
        _show_run(demo, again.run)
        demo.claim(
            f"now that every sink has them, the {LATE_ROWS} late rows are gone, too",
            again.result.deleted_rows == LATE_ROWS == before - (rows_in_lake(demo) or 0) and not again.result.held,
        )
        write(demo.home / "sunday.jsonl", events(SUNDAY_ID, SUNDAY_ROWS))
        demo.say("Ingesting more rows")
        ingest(demo, "sunday.jsonl")
        deliver(demo)
