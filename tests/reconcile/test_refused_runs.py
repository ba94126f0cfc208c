"""Runs on a whole lake that are refused, end early, or leave a part of it alone, and what they say of it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline.core.errors import RefusedError, RuntimeMissing, StorageError, SweepRunning
from strandline.core.forward_protocol import KeyIdentity
from strandline.core.records.reconcile_records import AbortReason, Asked, SweptState
from strandline.lake_parts import OpenTables
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import sequence
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome, MaintenanceRunId, NewRun
from strandline.ledger.receive.receipts import Note, TokenFingerprint
from strandline.ledger.reconcile import reconcile_runs
from strandline.receive.spool import FOLDER, open_spool
from strandline.reconcile import survey as survey_module
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake, after_survey, there


def test_a_second_run_is_told_that_one_is_under_way(lake: WholeLake) -> None:
    lake.settings(quarantine_days=0)
    orphan = lake.put("stray.parquet")
    acted = lake.run(ACT)
    (kept,) = lake.swept(acted.id)
    lease = reconcile_runs.take_lease(lake.lake.ledger, seconds=60)
    assert lease is not None
    reconciler = lake.lake.reconciler
    seconds: list[Callable[[], object]] = [
        lambda: lake.run(REPORT),
        lambda: lake.run(ACT),
        lambda: reconciler.restore(acted.id),
        reconciler.purge,
    ]
    for second in seconds:
        with pytest.raises(SweepRunning):
            second()
    assert there([orphan, kept.kept_at]) == [False, True] and [run.id for run in reconciler.runs()] == [acted.id]
    reconcile_runs.leases.release(lake.lake.ledger, lease)
    assert lake.run(REPORT).aborted is None
    assert reconciler.restore(acted.id).restored == 1


def test_more_than_the_share_is_refused_above_the_floor_only(make_lake: MakeLake) -> None:
    lake = make_lake(0, share_floor_files=20)
    lake.append()
    orphans = lake.puts(5)
    assert lake.run(ACT).outcome.done.orphans == 5
    orphans = lake.puts(30)
    run = lake.run(ACT)
    assert run.aborted is AbortReason.GUARD and all(there(orphans)) and run.outcome.done.orphans == 0
    assert run.outcome.planned.orphans == 30 and "reconcile.run_aborted" in lake.events()


def test_a_catalog_that_does_not_know_the_datasets_is_not_acted_by(lake: WholeLake) -> None:
    orphan = lake.put("stray.parquet")
    lake.lake.catalog.drop("default.events")
    run = lake.run(ACT)
    assert run.aborted is AbortReason.GUARD and Path(orphan).exists()
    assert all(there(lake.warehouse.glob("default/events/data/*.parquet")))  # type: ignore[arg-type]


def test_a_ledger_that_was_restored_from_an_older_copy_is_opened_before_anything_is_touched(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan, kept = lake.put("stray.parquet"), lake.put("kept.parquet")
    first = lake.run(ACT)
    lake.lake.reconciler.restore(first.id)
    ledger = lake.lake.config.path("ledger.db")
    old = ledger.read_bytes()
    lake.append()
    lake.lake.close()
    ledger.write_bytes(old)
    lake.lake = strandline.open(lake.home)
    opened: list[bool] = []
    monkeypatch.setattr(lake.lake.ingestion, "recover", lambda: opened.append(True))
    assert lake.run(REPORT).aborted is None and not opened, "a report touches nothing"
    run = lake.run(ACT)
    assert opened and run.aborted is AbortReason.GUARD and "witness" in (run.why or "")
    assert all(there([orphan, kept])) and len(lake.data_files()) == 3
    for work in (lake.lake.reconciler.purge, lambda: lake.lake.reconciler.restore(first.id)):
        with pytest.raises(RefusedError, match="witness"):
            work()
    # As a resync does it.
    highest = lake.lake.witness.read().highest
    with lake.lake.ledger.write() as connection:
        sequence.move(connection, last=highest, epoch=2)
    assert lake.run(ACT).outcome.done.orphans == 2


def test_without_a_witness_nothing_is_touched(lake: WholeLake) -> None:
    orphan = lake.put("stray.parquet")
    (lake.warehouse / "_strandline" / "witness").write_bytes(b"damaged")
    lake.lake.ingestion.recover = lambda: None
    run = lake.run(ACT)
    assert run.aborted is AbortReason.GUARD and Path(orphan).exists()


def test_a_lost_lease_ends_the_run_and_what_was_done_is_recorded(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(0, batch_size=2, lease_seconds=3600)
    lake.append()
    orphans = lake.puts(6)
    storage = lake.lake.reconciler.storage
    move, batches = storage.set_aside, []

    def taken_over(files: Any) -> Any:
        batches.append(files)
        if len(batches) == 2:
            with lake.lake.ledger.write() as connection:
                connection.exec_driver_sql("UPDATE sweep_lease SET fence = fence + 1, token = 'another'")
        return move(files)

    monkeypatch.setattr(storage, "set_aside", taken_over, raising=False)
    run = lake.run(ACT)
    assert run.aborted is AbortReason.LEASE_LOST
    assert run.outcome.done.orphans == 4 and sum(there(orphans)) == 2 and len(batches) == 2


def test_a_run_that_is_called_off_ends_and_says_so(lake: WholeLake) -> None:
    orphan, off = lake.put("stray.parquet"), threading.Event()
    off.set()
    run = lake.run(ACT, cancelled=off)
    assert run.aborted is AbortReason.CANCELLED and Path(orphan).exists()


def test_a_run_that_takes_too_long_ends_and_says_so(make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = make_lake(0, run_seconds_max=1)
    lake.append()
    orphan = lake.put("stray.parquet")
    after_survey(monkeypatch, lambda: time.sleep(1.1))
    run = lake.run(ACT)
    assert run.aborted is AbortReason.TIMEOUT and Path(orphan).exists()


def test_too_many_references_end_the_run_where_spark_cannot_be_used(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(0, references_max=1)
    lake.append()
    lake.append()

    def no_spark(self: OpenTables) -> None:
        raise RuntimeMissing("there is no Java")

    monkeypatch.setattr(OpenTables, "unsettled", property(no_spark))
    run = lake.run(REPORT)
    assert run.aborted is AbortReason.REFERENCES_TOO_MANY and "there is no Java" in (run.why or "")


def test_a_catalog_that_cannot_be_reached_ends_the_run_without_a_move(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = lake.put("stray.parquet")

    def away() -> list[str]:
        raise StorageError("the catalog cannot be reached")

    after_survey(monkeypatch, lambda: monkeypatch.setattr(lake.lake.catalog, "table_names", away))
    run = lake.run(ACT)
    assert run.aborted is AbortReason.UNKNOWN and "reached" in (run.why or "") and Path(orphan).exists()


def test_what_a_maintenance_job_under_way_has_written_is_spared_until_it_ends_or_is_dead(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin() -> MaintenanceRunId:
        with lake.lake.ledger.write() as connection:
            new = NewRun(lake.dataset.id, MaintenanceKind.COMPACT, "elsewhere:1")
            run = runs.begin(connection, new, lease_seconds=600)
        assert run is not None
        return run

    older, job, younger = lake.put("before.parquet"), begin(), lake.put("written.parquet", days_old=0)
    run = lake.run(ACT)
    assert run.outcome.protected == {"open_job": 1} and there([older, younger]) == [False, True]
    with lake.lake.ledger.write() as connection:
        assert runs.end(connection, job, MaintenanceOutcome.DONE, reason=None, result=None)
    assert lake.run(ACT).outcome.done.orphans == 1 and not Path(younger).exists()

    dead, left = begin(), lake.put("left.parquet", days_old=0)
    assert lake.run(ACT).outcome.protected == {"open_job": 1}
    later = utc_now() + timedelta(hours=1)
    monkeypatch.setattr("strandline.reconcile.ledger_context.utc_now", lambda: later)
    assert lake.run(REPORT).outcome.protected == {"open_job": 1}
    with lake.lake.ledger.read() as connection:  # a report closes nothing
        assert runs.get(connection, dead).outcome is None
    assert lake.run(ACT).outcome.protected == {"open_job": 1} and Path(left).exists()
    with lake.lake.ledger.read() as connection:
        assert runs.get(connection, dead).outcome is MaintenanceOutcome.DIED
    monkeypatch.setattr("strandline.reconcile.ledger_context.utc_now", lambda: later + runs.DIED_SPARED)
    assert lake.run(ACT).outcome.done.orphans == 1 and not Path(left).exists()


def test_a_table_whose_metadata_is_damaged_is_left_alone_and_the_run_is_partial(lake: WholeLake) -> None:
    orphan = lake.put("stray.parquet")
    Path(lake.table().metadata_location.removeprefix("file://")).write_bytes(b"{ no JSON")
    run = lake.run(ACT)
    assert run.outcome.partial and run.outcome.done.orphans == 0 and Path(orphan).exists()
    assert any("default.events" in failure for failure in run.outcome.failures)


def test_a_table_that_shrank_since_the_last_run_is_left_alone(lake: WholeLake) -> None:
    for _ in range(4):
        lake.append()
    lake.run(REPORT)
    table = lake.table()
    first = table.metadata.metadata_log[1].metadata_file
    catalog = lake.lake.config.path("catalog.db")
    with sqlite3.connect(catalog) as connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (first,))
    for file in (lake.warehouse / "default" / "events").rglob("*.*"):
        os.utime(file, (1e9, 1e9))
    run = lake.run(ACT)
    assert run.outcome.done.orphans == 0 and "references_shrunk" in run.outcome.protected


def test_what_a_table_referenced_before_outlives_the_record_of_the_run_that_counted(make_lake: MakeLake) -> None:
    lake = make_lake(0, history_runs=2)
    for _ in range(6):
        lake.append()
    lake.run(REPORT)
    old = lake.table().metadata.metadata_log[1].metadata_file
    with sqlite3.connect(lake.lake.config.path("catalog.db")) as connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (old,))
    for file in (lake.warehouse / "default" / "events").rglob("*.*"):
        os.utime(file, (1e9, 1e9))
    for _ in range(5):
        run = lake.run(ACT)
        assert run.outcome.done.orphans == 0 and "references_shrunk" in run.outcome.protected
    assert len(lake.lake.reconciler.runs(100)) == 2


def test_runs_that_end_early_are_bounded_too(make_lake: MakeLake) -> None:
    lake, off = make_lake(0, history_runs=3), threading.Event()
    lake.append()
    off.set()
    for _ in range(6):
        assert lake.run(REPORT, cancelled=off).aborted is AbortReason.CANCELLED
    assert len(lake.lake.reconciler.runs(100)) == 3


def test_under_a_prefix_that_was_not_listed_whole_nothing_is_touched_and_elsewhere_it_goes_on(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = lake.put("p=1/stray.parquet"), lake.put("p=2/stray.parquet")
    (gone,) = [lake.data_files()[0]]
    os.unlink(gone)
    failed = [str(Path(inside).parent), gone]
    real = survey_module.list_local

    def listed(*arguments: Any, **options: Any) -> Any:
        listing = real(*arguments, **options)
        for prefix, timed_out in zip(failed, (True, False), strict=True):
            listing.fail(prefix, "no answer", timed_out=timed_out)
        return listing

    monkeypatch.setattr(survey_module, "list_local", listed)
    run = lake.run(ACT)
    assert run.aborted is None and run.outcome.partial
    assert there([inside, outside]) == [True, False]
    assert run.outcome.done.missing == 0 and len(lake.data_files()) == 2
    assert run.outcome.protected["prefix_failed"] == 1
    assert all(any(prefix in failure for failure in run.outcome.failures) for prefix in failed)


def test_a_symlink_loop_in_a_table_is_told_and_the_rest_is_repaired(lake: WholeLake) -> None:
    orphan = lake.put("stray.parquet")
    loop = Path(orphan).parent / "loop"
    loop.symlink_to(Path(orphan).parent)
    run = lake.run(ACT)
    assert run.outcome.partial and run.outcome.done.orphans == 1 and loop.is_symlink()
    assert lake.count() == 6


def test_every_batch_that_acts_says_on_what_storage_and_what_was_skipped(lake: WholeLake) -> None:
    lake.puts(2)
    lake.run(ACT)
    os.unlink(lake.data_files()[0])
    lake.run(ACT)
    for event in ("reconcile.entries_dropped", "reconcile.files_quarantined"):
        (detail,) = lake.details(event)
        assert {"run", "storage", "partial", "cap_hit", "skipped_recheck", "samples"} <= detail.keys()
        assert detail["storage"] == "local" and detail["samples"]
    for detail in lake.details("reconcile.run_completed"):
        assert {"storage", "partial", "cap_hit", "skipped_recheck", "planned", "done"} <= detail.keys()


def test_a_batch_warns_once_and_not_once_for_each_file(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake.puts(5)

    def denied(self: Path, target: Any) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", denied)
    run = lake.run(ACT)
    assert run.outcome.done.failed == 5
    (warning,) = [r for r in caplog.records if r.name.startswith("strandline.reconcile")]
    assert "could not be moved: 5" in warning.getMessage()


def test_a_look_again_that_fails_is_told_and_counted_apart(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    *unseen, changed, last = lake.puts(5)
    store = lake.lake.reconciler.storage
    look = store.find_file

    def after() -> None:
        Path(changed).write_bytes(b"changed meanwhile")
        monkeypatch.setattr(store, "find_file", lambda path: _away(path) if path in unseen else look(path))

    after_survey(monkeypatch, after)
    run = lake.run(ACT)
    done = run.outcome.done
    assert (done.recheck_failed, done.skipped_recheck, done.orphans) == (3, 1, 1) and there([changed, last]) == [1, 0]
    assert {failure.partition(":")[0] for failure in run.outcome.failures} == set(unseen)
    told = [r.getMessage() for r in caplog.records if "checked again" in r.getMessage()]
    assert len(told) == 1 and told[0].endswith(": 3"), "one warning for a batch"


def _away(path: str) -> None:
    raise StorageError(f"{path}: no answer")


def test_a_body_that_nobody_knows_is_left_alone_and_one_without_a_note_is_never_deleted_at_once(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path / "lake")
    lake.append()
    spool = open_spool(lake.lake.config)
    note = Note(KeyIdentity("k"), TokenFingerprint("t", "f"), 3, "d", 1)
    names = [spool.write(lake.dataset.table_uuid, pa.table({"id": [1, 2, 3]}), note)[0] for _ in range(3)]
    body, left, in_hand = (lake.warehouse / FOLDER / name for name in names)
    left, in_hand = (file.rename(str(file).replace(".body", "")) for file in (left, in_hand))  # by an older version
    os.utime(body, (time.time() - 86_400, time.time() - 86_400))
    os.utime(left, (time.time() - 86_400, time.time() - 86_400))
    orphan = lake.put("orphan.parquet")
    run = lake.run(Asked(act=True, delete=True))
    assert run.outcome.done.orphans == 2 and in_hand.exists() and body.exists()
    assert run.outcome.protected == {"young": 1, "acknowledged": 1}
    assert lake.states(run.id) == {str(left): SweptState.HELD, orphan: SweptState.PURGED}
    assert lake.lake.reconciler.restore(run.id).restored == 1 and left.exists()
    lake.lake.close()
