"""Runs on a whole lake without a JVM: what they find, what they do, what they leave alone, and what they say."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline.cli.reconcile_commands import _PHASES
from strandline.drift import AbortReason, Asked, SweptState
from strandline.errors import RefusedError, RuntimeMissing, StorageError, SweepRunning
from strandline.ledger import losses, maintenance, reconcile_runs, sequence, sinks
from strandline.ledger.engine import utc_now
from strandline.ledger.maintenance import Kind, NewRun, Outcome, RunId
from strandline.receive.spool import FOLDER, open_spool
from strandline.reconcile import survey as survey_module
from strandline.reconcile import sweep as sweep_module
from strandline.reconcile import watch as watch_module
from strandline.reconcile.model import Finding, Phase
from strandline.types import Seq, SeqRange
from tests.reconcile.buckets import put_object
from tests.reconcile.whole_lakes import ACT, REPORT, WholeLake, there
from tests.servers import S3

MakeLake = Callable[..., WholeLake]


@pytest.fixture
def make_lake(tmp_path: Path) -> Iterator[MakeLake]:
    made: list[WholeLake] = []

    def make(**reconcile: Any) -> WholeLake:
        made.append(WholeLake(tmp_path / f"lake-{len(made)}", **reconcile))
        return made[-1]

    yield make
    for lake in made:
        lake.lake.close()


@pytest.fixture
def lake(make_lake: MakeLake) -> WholeLake:
    made = make_lake()
    made.append()
    made.append()
    return made


# ---- reporting -------------------------------------------------------------------------------------------------------


def test_a_run_only_reports_unless_it_is_asked_to_act(lake: WholeLake) -> None:
    orphans = lake.puts(3)
    os.unlink(lake.data_files()[0])
    found: list[Finding] = []
    run = lake.run(REPORT, on_finding=found.append)
    assert run.aborted is None and not run.outcome.partial
    assert (run.outcome.planned.missing, run.outcome.planned.orphans) == (1, 3)
    assert (run.outcome.done.missing, run.outcome.done.orphans) == (0, 0)
    assert all(there(orphans)) and len(found) == 4
    assert lake.events()[-2:] == ["run_started", "run_completed"]


def test_a_missing_file_is_told_with_its_range_and_who_holds_it(lake: WholeLake) -> None:
    with lake.lake.ledger.write() as connection:
        for name, start in (("ahead", Seq(3)), ("behind", None)):
            sinks.add(
                connection, instance=name, name=name, kind="files", dataset=lake.dataset.id, options={},
                destination=name, start=start,
            )  # fmt: skip
    gone = lake.data_files()[0]
    os.unlink(gone)
    run = lake.run(ACT)
    (sample,) = run.outcome.samples
    assert sample["path"] == gone and sample["rows"] == {"lo": 1, "hi": 3} and sample["table"] == "default.events"
    assert sample["delivered_to"] == ["ahead"] and sample["undelivered_to"] == ["behind"]
    assert sample["protected"] == "undelivered" and run.outcome.done.missing == 0
    assert run.outcome.protected == {"undelivered": 1}
    run = lake.run(Asked(act=True, accept_loss=True))
    assert run.outcome.done.missing == 1 and lake.count() == 3
    with lake.lake.ledger.read() as connection:
        ahead, behind = (sinks.get(connection, name) for name in ("ahead", "behind"))
        assert losses.lost_rows(connection, ahead) == 0 and losses.lost_rows(connection, behind) == 3
        assert losses.purged(connection, lake.dataset.id) == [SeqRange(Seq(1), Seq(3))]
    assert {s.name: s.lost_rows for s in lake.lake.status().sinks} == {"ahead": 0, "behind": 3}
    assert lake.details("rows_lost") == [
        {"sink": "behind", "dataset": "default.events", "rows": 3, "rule": "reconcile"}
    ]
    assert lake.details("entries_dropped")[0]["lost_to"] == {"behind": 3}


def test_a_sink_that_came_after_the_run_began_keeps_its_rows(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(lake.data_files()[0])

    def added() -> None:
        with lake.lake.ledger.write() as connection:
            sinks.add(
                connection, instance="s", name="late", kind="files", dataset=lake.dataset.id, options={},
                destination="s", start=None,
            )  # fmt: skip

    _after_survey(monkeypatch, added)
    run = lake.run(ACT)
    assert run.outcome.planned.missing == 1 and run.outcome.done.missing == 0
    assert run.outcome.done.skipped_recheck == 1 and len(lake.data_files()) == 2


def test_the_record_survives_and_is_newest_first_and_bounded(make_lake: MakeLake) -> None:
    lake = make_lake(history_runs=3)
    lake.append()
    held = lake.put("stray.parquet")
    first = lake.run(ACT)
    for _ in range(5):
        lake.run(REPORT)
    lake.settings(history_runs=3)
    runs = [run.id for run in lake.lake.reconciler.runs(100)]
    assert runs == sorted(runs, reverse=True)
    assert runs[-1] == first.id and len(runs) == 4  # the one that still holds a file is kept
    assert lake.lake.reconciler.show(first.id)[0].held == 1
    lake.lake.reconciler.restore(first.id)
    lake.run(REPORT)
    assert len(lake.lake.reconciler.runs(100)) == 3 and there([held]) == [True]


def test_progress_is_told_by_phase(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "TOLD_SECONDS", 0)
    told: dict[Phase, int] = {}
    lake.puts(2)
    run = lake.run(ACT, on_progress=lambda phase, count: told.update({phase: count}))
    assert list(told) == list(Phase) and {phase.value for phase in told} == _PHASES.keys()
    assert told[Phase.LIST] == run.outcome.listed and told[Phase.ORPHANS] == told[Phase.REFERENCES] == 2
    assert set(run.outcome.phases) == {phase.value for phase in Phase}


# ---- entries ---------------------------------------------------------------------------------------------------------


def test_entries_of_missing_files_are_dropped_by_one_commit_that_says_why(lake: WholeLake) -> None:
    lake.append()
    before = len(lake.table().metadata.snapshots)
    gone = lake.data_files()[:2]
    for path in gone:
        os.unlink(path)
    run = lake.run(ACT)
    assert run.aborted is None and run.outcome.done.missing == 2
    table = lake.table()
    assert len(table.metadata.snapshots) == before + 1 and lake.count() == 3
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None and summary["strandline.reconcile.run"] == str(run.id)
    assert "gone" in (summary["strandline.reconcile.reason"] or "")
    assert lake.details("entries_dropped")[0]["entries"] == 2
    again = lake.run(ACT)  # history has the entries still; there is nothing to drop them from
    assert again.outcome.planned.missing == 0 and again.outcome.protected == {"not_in_main": 2}


def test_an_entry_above_the_seal_is_never_dropped(lake: WholeLake) -> None:
    lake.append(publish=False)
    os.unlink(lake.data_files()[2])
    run = lake.run(ACT)
    assert run.outcome.done.missing == 0 and lake.table().current_snapshot() is not None
    assert len(lake.data_files()) == 3
    assert run.outcome.found.missing == 1 and run.outcome.protected == {"unsealed": 1}


def test_a_file_that_is_only_in_quarantine_is_brought_back_and_its_entry_stays(lake: WholeLake) -> None:
    stray = lake.put("later-live.parquet")
    first = lake.run(ACT)
    assert not Path(stray).exists()
    live = lake.data_files()[0]
    kept = lake.swept(first.id)[0].kept_at
    # As if the live file had been the one that was set aside.
    with lake.lake.ledger.write() as connection:
        connection.exec_driver_sql("DROP TRIGGER a_swept_file_goes_its_way")
        connection.exec_driver_sql("UPDATE swept_file SET path = ?", (live,))
    os.replace(live, kept)
    report = lake.run(REPORT)
    assert report.outcome.samples[0]["in_quarantine"] is True and not Path(live).exists()
    run = lake.run(ACT)
    assert run.outcome.done.restored == 1 and run.outcome.done.missing == 0 and Path(live).exists()
    assert lake.count() == 6 and lake.swept(first.id)[0].state is SweptState.RESTORED


# ---- files -----------------------------------------------------------------------------------------------------------


def test_orphans_are_set_aside_and_can_be_brought_back(lake: WholeLake) -> None:
    names = ["a b.parquet", "100%.parquet", "%41.parquet", "naïve-日本.parquet", "new\nline.parquet", "p=1/x.parquet"]
    orphans = [lake.put(name, content=name.encode()) for name in names]
    run = lake.run(ACT)
    assert run.outcome.done.orphans == len(orphans) and not any(there(orphans))
    assert run.outcome.done.bytes == sum(len(name.encode()) for name in names)
    assert set(lake.states(run.id).values()) == {SweptState.HELD} and lake.count() == 6
    for file in lake.swept(run.id):
        assert Path(file.kept_at).exists() and file.kept_at.endswith(file.path.removeprefix(str(lake.warehouse)))
    again = lake.run(ACT)
    assert again.outcome.found.orphans == 0 and again.outcome.done.orphans == 0
    restored = lake.lake.reconciler.restore(run.id)
    assert restored.restored == len(orphans) and all(there(orphans))
    assert [Path(path).read_bytes() for path in orphans] == [name.encode() for name in names]
    assert lake.lake.reconciler.restore(run.id).restored == 0
    assert {"files_quarantined", "files_restored"} <= set(lake.events())


def test_a_restore_never_replaces_a_file_that_came_since(lake: WholeLake) -> None:
    path = lake.put("stray.parquet", content=b"old")
    run = lake.run(ACT)
    lake.put("stray.parquet", content=b"newer")
    restored = lake.lake.reconciler.restore(run.id)
    assert restored.restored == 0 and restored.taken == (path,)
    assert Path(path).read_bytes() == b"newer" and lake.states(run.id)[path] is SweptState.HELD


def test_purge_waits_for_its_days_and_then_deletes(lake: WholeLake) -> None:
    lake.puts(3)
    run = lake.run(ACT)
    purged = lake.lake.reconciler.purge()
    assert (purged.purged, purged.waiting) == (0, 3)
    lake.settings(quarantine_days=0)
    purged = lake.lake.reconciler.purge(run.id)
    assert (purged.purged, purged.bytes, purged.waiting) == (3, 6, 0)
    assert set(lake.states(run.id).values()) == {SweptState.PURGED}
    assert not any(there([file.kept_at for file in lake.swept(run.id)]))
    assert lake.lake.reconciler.restore(run.id).restored == 0


def test_delete_deletes_at_once_and_says_so(lake: WholeLake) -> None:
    orphans = lake.puts(3)
    run = lake.run(Asked(act=True, delete=True))
    assert run.outcome.done.orphans == 3 and not any(there(orphans))
    assert set(lake.states(run.id).values()) == {SweptState.PURGED}
    assert lake.details("files_deleted")[0]["files"] == 3


def test_a_foreign_file_is_told_and_never_touched(lake: WholeLake) -> None:
    foreign = lake.put("../../notes.txt")
    run = lake.run(ACT)
    assert Path(foreign).exists() and run.outcome.found.foreign == 1 and run.outcome.planned.foreign == 0
    assert run.outcome.protected == {"layout": 1}


def test_at_the_cap_exactly_so_many_are_acted_on_and_the_next_run_goes_on(make_lake: MakeLake) -> None:
    lake = make_lake(deletes_max_per_run=4, batch_size=3, deletes_max_share=1.0)
    lake.append()
    orphans = lake.puts(10)
    run = lake.run(ACT)
    assert run.outcome.cap_hit and run.outcome.done.orphans == 4 and sum(there(orphans)) == 6
    assert "cap_hit" in lake.events() and there(orphans[:4]) == [False] * 4
    assert lake.run(ACT).outcome.cap_hit
    last = lake.run(ACT)
    assert not last.outcome.cap_hit and last.outcome.done.orphans == 2 and not any(there(orphans))


def test_candidates_that_are_skipped_do_not_use_up_the_cap(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(deletes_max_per_run=4, batch_size=2, deletes_max_share=1.0)
    lake.append()
    orphans = lake.puts(10)
    _after_survey(monkeypatch, lambda: [Path(path).write_bytes(b"rewritten") for path in orphans[:5]])
    run = lake.run(ACT)
    assert run.outcome.done.orphans == 4 and run.outcome.done.skipped_recheck == 5
    assert all(there(orphans[:5])) and not any(there(orphans[5:9])) and there(orphans[9:]) == [True]


def _after_survey(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Something happens between listing and acting."""
    tell = sweep_module._Sweep._tell

    def told(self: Any, *arguments: Any) -> None:
        tell(self, *arguments)
        then()

    monkeypatch.setattr(sweep_module._Sweep, "_tell", told)


def test_a_file_that_is_registered_between_listing_and_acting_is_not_touched(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = lake.data_files()[0]
    copy = lake.put("registered.parquet", content=Path(live).read_bytes())
    other = lake.put("stray.parquet")
    _after_survey(monkeypatch, lambda: lake.table().add_files([f"file://{copy}"]))
    run = lake.run(ACT)
    assert there([copy, other]) == [True, False] and run.outcome.done.skipped_recheck == 1


def test_a_file_that_is_registered_while_it_is_moved_is_brought_back(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = lake.data_files()[0]
    copy = lake.put("registered.parquet", content=Path(live).read_bytes())
    storage = lake.lake.reconciler.storage
    move = storage.set_aside

    def registered_first(files: Any) -> Any:
        lake.table().add_files([f"file://{copy}"])
        return move(files)

    monkeypatch.setattr(storage, "set_aside", registered_first, raising=False)
    run = lake.run(ACT)
    assert Path(copy).exists() and run.outcome.done.orphans == 0
    assert lake.states(run.id)[copy] is SweptState.RESTORED and lake.count() == 9


def test_a_file_that_is_rewritten_under_the_same_path_is_not_touched(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lake.put("stray.parquet", content=b"old")
    _after_survey(monkeypatch, lambda: lake.put("stray.parquet", content=b"new", days_old=9))
    run = lake.run(ACT)
    assert Path(path).read_bytes() == b"new" and run.outcome.done.skipped_recheck == 1


def test_a_file_that_is_deleted_meanwhile_is_skipped(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lake.put("stray.parquet")
    _after_survey(monkeypatch, lambda: os.unlink(path))
    run = lake.run(ACT)
    assert run.aborted is None and run.outcome.done.orphans == 0 and run.outcome.done.skipped_recheck == 1


def test_one_file_that_cannot_be_moved_does_not_stop_the_others(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, free = lake.put("stuck.parquet"), lake.put("free.parquet")
    rename = Path.rename

    def denied(self: Path, target: Any) -> Path:
        if str(self) == stuck:
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", denied)
    run = lake.run(ACT)
    assert there([stuck, free]) == [True, False] and run.outcome.done.orphans == 1
    assert run.outcome.done.failed == 1 and lake.states(run.id)[stuck] is SweptState.LEFT
    assert any("Permission denied" in failure for failure in run.outcome.failures)


# ---- gate and guards -------------------------------------------------------------------------------------------------


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
    reconcile_runs.release(lake.lake.ledger, lease)
    assert lake.run(REPORT).aborted is None
    assert reconciler.restore(acted.id).restored == 1


def test_more_than_the_share_is_refused_above_the_floor_only(make_lake: MakeLake) -> None:
    lake = make_lake(share_floor_files=20)
    lake.append()
    orphans = lake.puts(5)
    assert lake.run(ACT).outcome.done.orphans == 5
    orphans = lake.puts(30)
    run = lake.run(ACT)
    assert run.aborted is AbortReason.GUARD and all(there(orphans)) and run.outcome.done.orphans == 0
    assert run.outcome.planned.orphans == 30 and "run_aborted" in lake.events()


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
    monkeypatch.setattr(lake.lake.reconciler, "_open_ledger", lambda: opened.append(True))
    assert lake.run(REPORT).aborted is None and not opened, "a report touches nothing"
    run = lake.run(ACT)
    assert opened and run.aborted is AbortReason.GUARD and "witness" in (run.why or "")
    assert all(there([orphan, kept])) and len(lake.data_files()) == 3
    for work in (lake.lake.reconciler.purge, lambda: lake.lake.reconciler.restore(first.id)):
        with pytest.raises(RefusedError, match="witness"):
            work()
    # As opening does it.
    highest = lake.lake.witness.read().highest
    with lake.lake.ledger.write() as connection:
        sequence.move(connection, last=highest, epoch=2)
    assert lake.run(ACT).outcome.done.orphans == 2


def test_without_a_witness_nothing_is_touched(lake: WholeLake) -> None:
    orphan = lake.put("stray.parquet")
    (lake.warehouse / "_strandline" / "witness").write_bytes(b"damaged")
    lake.lake.reconciler._open_ledger = lambda: None
    run = lake.run(ACT)
    assert run.aborted is AbortReason.GUARD and Path(orphan).exists()


def test_a_lost_lease_ends_the_run_and_what_was_done_is_recorded(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(batch_size=2, lease_seconds=60)
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
    lake = make_lake(run_seconds_max=1)
    lake.append()
    orphan = lake.put("stray.parquet")
    _after_survey(monkeypatch, lambda: time.sleep(1.1))
    run = lake.run(ACT)
    assert run.aborted is AbortReason.TIMEOUT and Path(orphan).exists()


def test_too_many_references_end_the_run_where_spark_cannot_be_used(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(references_max=1)
    lake.append()
    lake.append()

    def no_spark() -> None:
        raise RuntimeMissing("there is no Java")

    monkeypatch.setattr(lake.lake.reconciler, "_spark", no_spark)
    run = lake.run(REPORT)
    assert run.aborted is AbortReason.REFERENCES_TOO_MANY and "there is no Java" in (run.why or "")


def test_a_catalog_that_cannot_be_reached_ends_the_run_without_a_move(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = lake.put("stray.parquet")

    def away() -> list[str]:
        raise StorageError("the catalog cannot be reached")

    _after_survey(monkeypatch, lambda: monkeypatch.setattr(lake.lake.catalog, "table_names", away))
    run = lake.run(ACT)
    assert run.aborted is AbortReason.UNKNOWN and "reached" in (run.why or "") and Path(orphan).exists()


def test_what_a_maintenance_job_under_way_has_written_is_spared_until_it_ends_or_is_dead(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin() -> RunId:
        with lake.lake.ledger.write() as connection:
            new = NewRun(lake.dataset.id, Kind.COMPACT, "elsewhere:1")
            run = maintenance.begin(connection, new, lease_seconds=600)
        assert run is not None
        return run

    older, job, younger = lake.put("before.parquet"), begin(), lake.put("written.parquet", days_old=0)
    run = lake.run(ACT)
    assert run.outcome.protected == {"open_job": 1} and there([older, younger]) == [False, True]
    with lake.lake.ledger.write() as connection:
        assert maintenance.end(connection, job, Outcome.DONE, reason=None, result=None)
    assert lake.run(ACT).outcome.done.orphans == 1 and not Path(younger).exists()

    dead, left = begin(), lake.put("left.parquet", days_old=0)
    assert lake.run(ACT).outcome.protected == {"open_job": 1}
    later = utc_now() + timedelta(hours=1)
    monkeypatch.setattr("strandline.reconcile.ground.utc_now", lambda: later)
    assert lake.run(REPORT).outcome.protected == {"open_job": 1}
    with lake.lake.ledger.read() as connection:  # a report closes nothing
        assert maintenance.get(connection, dead).outcome is None
    assert lake.run(ACT).outcome.protected == {"open_job": 1} and Path(left).exists()
    with lake.lake.ledger.read() as connection:
        assert maintenance.get(connection, dead).outcome is Outcome.DIED
    monkeypatch.setattr("strandline.reconcile.ground.utc_now", lambda: later + maintenance.DIED_SPARED)
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
    lake = make_lake(history_runs=2)
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
    lake, off = make_lake(history_runs=3), threading.Event()
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
    os.unlink(lake.data_files()[0])
    lake.run(ACT)
    for event in ("entries_dropped", "files_quarantined"):
        (detail,) = lake.details(event)
        assert {"run", "storage", "partial", "cap_hit", "skipped_recheck", "samples"} <= detail.keys()
        assert detail["storage"] == "local" and detail["samples"]
    (detail,) = lake.details("run_completed")
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


def test_a_body_that_nobody_knows_is_set_aside_and_never_deleted_at_once(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path / "lake")
    lake.append()
    spool = open_spool(lake.lake.config)
    names = [spool.write(lake.dataset.table_uuid, pa.table({"id": [1, 2, 3]}))[0] for _ in range(2)]
    left, in_hand = (lake.warehouse / FOLDER / name for name in names)
    os.utime(left, (time.time() - 86_400, time.time() - 86_400))
    orphan = lake.put("orphan.parquet")
    run = lake.run(Asked(act=True, delete=True))
    assert run.outcome.done.orphans == 2 and run.outcome.protected == {"young": 1} and in_hand.exists()
    assert lake.states(run.id) == {str(left): SweptState.HELD, orphan: SweptState.PURGED}
    assert lake.lake.reconciler.restore(run.id).restored == 1 and left.exists()
    lake.lake.close()


# ---- elsewhere -------------------------------------------------------------------------------------------------------


def test_the_record_may_be_in_postgresql(tmp_path: Path, postgres_database: str) -> None:
    lake = WholeLake(tmp_path / "lake", {"ledger": {"url": postgres_database}})
    lake.append()
    lake.append()
    orphans = lake.puts(3)
    os.unlink(lake.data_files()[0])
    run = lake.run(ACT)
    assert (run.outcome.done.missing, run.outcome.done.orphans) == (1, 3)
    assert lake.lake.reconciler.restore(run.id).restored == 3 and all(there(orphans))
    lake.lake.close()


def test_a_lake_in_a_bucket_is_repaired_and_undone_the_same_way(tmp_path: Path, s3: S3) -> None:
    bucket = s3.make_bucket()
    keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
    lake = WholeLake(tmp_path / "lake", {"warehouse": {"url": f"s3://{bucket}/lake"} | keys}, deletes_max_share=1.0)
    for _ in range(3):
        lake.append()
    # What an append that the server refused has left is an orphan, too.
    needed = {path.removeprefix("s3://") for path in lake.data_files()}
    for left in (s3.server.folder / "data" / bucket / "lake/default/events/data").iterdir():
        if f"{bucket}/lake/default/events/data/{left.name}" not in needed:
            left.unlink()
    objects = s3.server.folder / "data"
    (objects / lake.data_files()[0].removeprefix("s3://")).unlink()
    names = ("a b.parquet", "100%.parquet", "p=ü/x.parquet")
    put = [put_object(s3, bucket, f"lake/default/events/data/{name}", b"orphan") for name in names]
    orphans = [objects / path.removeprefix("s3://") for path in put]
    assert all(orphan.exists() for orphan in orphans)
    time.sleep(1.1)  # a bucket's times are whole seconds
    report = lake.run(REPORT)
    assert (report.outcome.planned.missing, report.outcome.planned.orphans) == (1, 3), report
    run = lake.run(ACT)
    while run.aborted is AbortReason.COMMIT_FAILED and "parsing the HTTP request" in (run.why or ""):
        run = lake.run(ACT)  # the server of the tests says so once in many requests
    assert (run.outcome.done.missing, run.outcome.done.orphans, run.outcome.done.failed) == (1, 3, 0)
    assert run.storage == "s3" and not any(orphan.exists() for orphan in orphans) and lake.count() == 6
    restored = lake.lake.reconciler.restore(run.id)
    assert restored.restored == 3 and [orphan.read_bytes() for orphan in orphans] == [b"orphan"] * 3
    assert lake.lake.reconciler.purge().purged == 0
    time.sleep(1.1)
    deleted = lake.run(Asked(act=True, delete=True))
    assert deleted.outcome.done.orphans == 3 and not any(orphan.exists() for orphan in orphans)
    assert set(lake.states(deleted.id).values()) == {SweptState.PURGED}
    lake.lake.close()
