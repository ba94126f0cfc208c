"""Runs on a whole lake without a JVM: what they find, what they do, what they leave alone, and what they say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.cli.commands.reconcile import _PHASES
from strandline.core.records.reconcile_records import AbortReason, Asked, SweptState
from strandline.core.types import SEQ_COLUMN, Seq, SeqRange
from strandline.ledger.deliver import losses, sinks
from strandline.reconcile import run_watch as watch_module
from strandline.reconcile.model import Finding, Phase
from tests.reconcile.buckets import put_object
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake, after_survey, there
from tests.servers import S3

# ---- reporting -------------------------------------------------------------------------------------------------------


def test_a_run_only_reports_unless_it_is_asked_to_act(lake: WholeLake) -> None:
    orphans = lake.puts(3)
    found: list[Finding] = []
    run = lake.run(REPORT, on_finding=found.append)
    assert run.aborted is None and not run.outcome.partial
    assert (run.outcome.planned.missing, run.outcome.planned.orphans) == (0, 3) and len(found) == 3
    os.unlink(lake.data_files()[0])
    run = lake.run(REPORT)
    assert (run.outcome.planned.missing, run.outcome.planned.orphans) == (1, 0)
    assert (run.outcome.done.missing, run.outcome.done.orphans) == (0, 0)
    assert all(there(orphans)) and len(lake.data_files()) == 2
    assert lake.events()[-2:] == ["reconcile.run_started", "reconcile.run_completed"]


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
        assert (
            sum(x.rows or 0 for x in losses.of_sink(connection, ahead)) == 0
            and sum(x.rows or 0 for x in losses.of_sink(connection, behind)) == 3
        )
        assert losses.purged(connection, lake.dataset.id) == [SeqRange(Seq(1), Seq(3))]
    assert {s.name: s.lost_rows for s in lake.lake.status().sinks} == {"ahead": 0, "behind": 3}
    assert lake.details("sink.rows_lost") == [
        {"sink": "behind", "dataset": "default.events", "rows": 3, "rule": "reconcile"}
    ]
    assert lake.details("reconcile.entries_dropped")[0]["lost_to"] == {"behind": 3}


def test_a_sink_that_came_after_the_run_began_keeps_its_rows(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(lake.data_files()[0])

    def added() -> None:
        with lake.lake.ledger.write() as connection:
            sinks.add(
                connection, instance="s", name="late", kind="files", dataset=lake.dataset.id, options={},
                destination="s", start=None,
            )  # fmt: skip

    after_survey(monkeypatch, added)
    run = lake.run(ACT)
    assert run.outcome.planned.missing == 1 and run.outcome.done.missing == 0
    assert run.outcome.done.skipped_recheck == 1 and len(lake.data_files()) == 2


def test_the_record_survives_and_is_newest_first_and_bounded(make_lake: MakeLake) -> None:
    lake = make_lake(0, history_runs=3)
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
    monkeypatch.setattr(watch_module, "PROGRESS_SECONDS", 0)
    told: dict[Phase, int] = {}
    totals: dict[Phase, int | None] = {}
    lake.puts(2)

    def tell(phase: Phase, count: int, total: int | None) -> None:
        told[phase], totals[phase] = count, total

    run = lake.run(ACT, on_progress=tell)
    assert list(told) == list(Phase) and {phase.value for phase in told} == _PHASES.keys()
    assert told[Phase.LIST] == run.outcome.listed and told[Phase.ORPHANS] == told[Phase.REFERENCES] == 2
    assert set(run.outcome.phases) == {phase.value for phase in Phase}
    known = {phase: total for phase, total in totals.items() if total is not None}
    assert known == {Phase.MISSING: 0, Phase.ORPHANS: 2}


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
    assert lake.details("reconcile.entries_dropped")[0]["entries"] == 2
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
    assert {"reconcile.files_quarantined", "reconcile.files_restored"} <= set(lake.events())


def test_a_restore_never_replaces_a_file_that_came_since(lake: WholeLake) -> None:
    path = lake.put("stray.parquet", content=b"old")
    run = lake.run(ACT)
    lake.put("stray.parquet", content=b"newer")
    restored = lake.lake.reconciler.restore(run.id)
    assert restored.restored == 0 and restored.taken == [path]
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
    assert lake.details("reconcile.files_deleted")[0]["files"] == 3


def test_a_foreign_file_is_told_and_never_touched(lake: WholeLake) -> None:
    foreign = lake.put("../../notes.txt")
    run = lake.run(ACT)
    assert Path(foreign).exists() and run.outcome.found.foreign == 1 and run.outcome.planned.foreign == 0
    assert run.outcome.protected == {"layout": 1}


def test_at_the_cap_exactly_so_many_are_acted_on_and_the_next_run_goes_on(make_lake: MakeLake) -> None:
    lake = make_lake(0, deletes_max_per_run=4, batch_size=3, deletes_max_share=1.0)
    lake.append()
    orphans = lake.puts(10)
    run = lake.run(ACT)
    assert run.outcome.cap_hit and run.outcome.done.orphans == 4 and sum(there(orphans)) == 6
    assert "reconcile.cap_hit" in lake.events() and there(orphans[:4]) == [False] * 4
    assert lake.run(ACT).outcome.cap_hit
    last = lake.run(ACT)
    assert not last.outcome.cap_hit and last.outcome.done.orphans == 2 and not any(there(orphans))


def test_candidates_that_are_skipped_do_not_use_up_the_cap(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(0, deletes_max_per_run=4, batch_size=2, deletes_max_share=1.0)
    lake.append()
    orphans = lake.puts(10)
    after_survey(monkeypatch, lambda: [Path(path).write_bytes(b"rewritten") for path in orphans[:5]])
    run = lake.run(ACT)
    assert run.outcome.done.orphans == 4 and run.outcome.done.skipped_recheck == 5
    assert all(there(orphans[:5])) and not any(there(orphans[5:9])) and there(orphans[9:]) == [True]


def test_a_file_that_is_registered_between_listing_and_acting_is_not_touched(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = lake.data_files()[0]
    copy = lake.put("registered.parquet", content=Path(live).read_bytes())
    other = lake.put("stray.parquet")
    after_survey(monkeypatch, lambda: lake.table().add_files([f"file://{copy}"]))
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
    after_survey(monkeypatch, lambda: lake.put("stray.parquet", content=b"new", days_old=9))
    run = lake.run(ACT)
    assert Path(path).read_bytes() == b"new" and run.outcome.done.skipped_recheck == 1


def test_a_file_that_is_deleted_meanwhile_is_skipped(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lake.put("stray.parquet")
    after_survey(monkeypatch, lambda: os.unlink(path))
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


# ---- elsewhere -------------------------------------------------------------------------------------------------------


def test_the_record_may_be_in_postgresql(tmp_path: Path, postgres_database: str) -> None:
    lake = WholeLake(tmp_path / "lake", {"ledger": {"url": postgres_database}})
    lake.append()
    lake.append()
    orphans = lake.puts(3)
    run = lake.run(ACT)
    assert run.outcome.done.orphans == 3
    assert lake.lake.reconciler.restore(run.id).restored == 3 and all(there(orphans))
    gone = Path(lake.data_files()[0])
    suspect = gone.rename(gone.with_name("renamed.parquet"))
    assert lake.run(ACT).outcome.suspects == 1 and lake.run(ACT).outcome.done.missing == 0
    lake.lake.reconciler.release(str(suspect))
    assert lake.run(ACT).outcome.done.missing == 1
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
    names = ("a b.parquet", "100%.parquet", "p=ü/x.parquet")
    put = [put_object(s3, bucket, f"lake/default/events/data/{name}", b"orphan") for name in names]
    orphans = [objects / path.removeprefix("s3://") for path in put]
    assert all(orphan.exists() for orphan in orphans)
    time.sleep(1.1)  # a bucket's times are whole seconds
    report = lake.run(REPORT)
    assert (report.outcome.planned.missing, report.outcome.planned.orphans) == (0, 3), report
    run = lake.run(ACT)
    assert (run.outcome.done.missing, run.outcome.done.orphans, run.outcome.done.failed) == (0, 3, 0)
    assert run.storage == "s3" and not any(orphan.exists() for orphan in orphans)
    restored = lake.lake.reconciler.restore(run.id)
    assert restored.restored == 3 and [orphan.read_bytes() for orphan in orphans] == [b"orphan"] * 3
    assert lake.lake.reconciler.purge().purged == 0
    time.sleep(1.1)
    deleted = lake.run(Asked(act=True, delete=True))
    assert deleted.outcome.done.orphans == 3 and not any(orphan.exists() for orphan in orphans)
    assert set(lake.states(deleted.id).values()) == {SweptState.PURGED}
    gone = lake.data_files()[0]
    (objects / gone.removeprefix("s3://")).unlink()
    # Not of the same size; its footer has the rows.
    rows = pa.table({SEQ_COLUMN: [1, 2, 3], "other": ["x" * 99] * 3})
    content = pa.BufferOutputStream()
    pq.write_table(rows, content)
    suspect = put_object(s3, bucket, "lake/default/events/data/renamed.parquet", content.getvalue().to_pybytes())
    run = lake.run(ACT)
    assert run.outcome.suspects == 1 and run.outcome.done.missing == 0, run
    lake.lake.reconciler.release(suspect)
    run = lake.run(ACT)
    while run.aborted is AbortReason.COMMIT_FAILED and "parsing the HTTP request" in (run.why or ""):
        run = lake.run(ACT)  # the server of the tests says so once in many requests
    assert run.outcome.done.missing == 1 and lake.count() == 6
    lake.lake.close()
