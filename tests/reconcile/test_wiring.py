"""What the ledger, the settings and the command line say reaches a run; and what a run says reaches the audit."""

from __future__ import annotations

import csv
import json
import logging
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from strandline.cli.main import run as cli
from strandline.core.records.audit_events import Event
from strandline.core.records.reconcile_records import AbortReason, Asked, SweptState
from strandline.core.types import Seq
from strandline.ledger.deliver import losses, sinks
from strandline.ledger.maintain import runs
from strandline.ledger.maintain.runs import MaintenanceKind, MaintenanceOutcome, NewRun
from strandline.ledger.reconcile import reconcile_runs
from strandline.ledger.replicate import followers
from strandline.reconcile import quarantine
from strandline.reconcile.storage.object_inventory import list_prefixes
from strandline.storage.s3_listing import ListedBucket
from tests.reconcile.buckets import put_object, settings_of
from tests.reconcile.whole_lakes import ACT, REPORT, WholeLake, there
from tests.servers import S3


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WholeLake]:
    made = WholeLake(tmp_path / "lake")
    made.append()
    monkeypatch.chdir(made.home)
    yield made
    made.lake.close()


def _as_s3_says(modified_ns: int) -> str:
    return datetime.fromtimestamp(modified_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def add_sink(lake: WholeLake, name: str, start: Seq | None) -> None:
    with lake.lake.ledger.write() as connection:
        sinks.add(
            connection, instance=name, name=name, kind="files", dataset=lake.dataset.id, options={},
            destination=name, start=start,
        )  # fmt: skip


# ---- the ledger ------------------------------------------------------------------------------------------------------


def test_nothing_younger_than_the_oldest_open_block_is_touched(lake: WholeLake) -> None:
    older = lake.put("older.parquet", days_old=1)
    lake.append(publish=False)
    with lake.lake.ledger.read() as connection:
        (began,) = connection.exec_driver_sql("SELECT max(reserved_at) FROM block").one()
    younger = lake.put("younger.parquet", days_old=0)
    time.sleep(0.01)
    run = lake.run(ACT)
    assert began is not None and run.outcome.protected == {"open_block": 1}
    assert there([older, younger]) == [False, True]


def test_what_an_expiry_under_way_has_let_go_of_it_may_still_read(lake: WholeLake) -> None:
    """Its age does not matter: it was live a moment ago."""
    manifest = Path(lake.put("x.parquet")).parents[1] / "metadata" / "let-go-m0.avro"
    manifest.write_bytes(b"x")
    os.utime(manifest, (1e9, 1e9))
    with lake.lake.ledger.write() as connection:
        job = runs.begin(connection, NewRun(lake.dataset.id, MaintenanceKind.EXPIRE, "elsewhere:1"), lease_seconds=600)
        assert job is not None
    run = lake.run(ACT)
    assert (run.outcome.done.orphans, run.outcome.done.skipped_recheck) == (1, 1) and manifest.exists()
    with lake.lake.ledger.write() as connection:
        runs.end(connection, job, MaintenanceOutcome.DONE, reason=None, result=None)
    assert lake.run(ACT).outcome.done.orphans == 1 and not manifest.exists()


def test_a_catalog_without_a_table_is_not_one_of_record(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path / "lake", delete_foreign=True)
    lake.lake.drop_dataset("events")
    stray = lake.warehouse / "ns" / "x" / "data" / "stray.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x")
    os.utime(stray, (1e9, 1e9))
    run = lake.run(ACT)
    assert run.aborted is AbortReason.GUARD and "no table" in (run.why or "") and stray.exists()
    assert lake.run(REPORT).aborted is None
    lake.lake.close()


# ---- the settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [False, True])
def test_what_lies_in_unknown_folders_is_touched_only_if_that_is_allowed(tmp_path: Path, allowed: bool) -> None:
    lake = WholeLake(tmp_path / "lake", delete_foreign=allowed)
    lake.append()
    stray = lake.warehouse / "unknown" / "x" / "data" / "stray.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x")
    os.utime(stray, (1e9, 1e9))
    run = lake.run(ACT)
    assert (run.outcome.found.orphans, run.outcome.done.orphans) == (1, int(allowed))
    assert stray.exists() is not allowed and run.outcome.protected == ({} if allowed else {"unknown_root": 1})
    lake.lake.reconciler.restore(run.id)
    assert stray.exists()
    lake.lake.close()


def test_purge_is_exact_to_the_second(lake: WholeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.puts(2)
    run = lake.run(ACT)
    held = max(file.begun_at for file in lake.swept(run.id))
    now: list[datetime] = []
    monkeypatch.setattr(quarantine, "utc_now", lambda: now[-1])
    for seconds, purged in ((-1, 0), (1, 2)):
        now.append(held + timedelta(days=7, seconds=seconds))
        assert lake.lake.reconciler.purge().purged == purged
    assert set(lake.states(run.id).values()) == {SweptState.PURGED}


# ---- the audit and the log -------------------------------------------------------------------------------------------


def test_the_audit_has_bounded_samples_and_one_warning_for_each_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = WholeLake(tmp_path / "lake", samples_max=2, batch_size=4, deletes_max_per_run=7)
    lake.append()
    lake.puts(9)
    with caplog.at_level(logging.WARNING, logger="strandline"):
        run = lake.run(Asked(act=True, delete=True))
    assert run.outcome.cap_hit and run.outcome.done.orphans == 7
    for event, counts in (("reconcile.files_quarantined", [4, 3]), ("reconcile.files_deleted", [4, 3])):
        told = lake.details(event)
        assert sorted(one["files"] for one in told) == sorted(counts)
        for one in told:
            assert len(one["samples"]) == 2 and one["run"] == run.id and one["storage"] == "local"
            assert {"bytes", "partial", "cap_hit", "skipped_recheck", "failed"} <= one.keys()
    (cap,) = lake.details("reconcile.cap_hit")
    assert (cap["cap"], cap["orphans"], cap["missing"], cap["cap_hit"], cap["partial"]) == (7, 7, 0, True, False)
    assert cap["storage"] == "local" and "skipped_recheck" in cap
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [
        f"{'quarantined' if n % 2 == 0 else 'deleted'}: {(4, 3)[n // 2]}" in text for n, text in enumerate(said)
    ] == [True] * 4, said
    lake.lake.close()


def test_a_run_that_is_refused_says_so_in_the_audit(lake: WholeLake) -> None:
    (lake.home / "catalog.db").rename(lake.home / "away.db")
    lake.settings()
    run = lake.run(ACT)
    (told,) = lake.details("reconcile.run_aborted")
    assert run.aborted is not None and told["run"] == run.id and told["reason"] == run.aborted.value
    assert told["storage"] == "local"


# ---- the command line ------------------------------------------------------------------------------------------------


def test_it_only_reports_though_the_schedule_would_act(lake: WholeLake) -> None:
    orphans = lake.puts(2)
    lake.settings(enabled=True, dry_run=False)
    assert cli(["reconcile"]) == 0 and all(there(orphans))
    (run,) = lake.lake.reconciler.runs()
    assert not run.asked.act and run.outcome.planned.orphans == 2


def test_delete_and_accept_loss_are_what_they_say(lake: WholeLake) -> None:
    lake.append()
    add_sink(lake, "behind", None)
    lake.lake.followers.add("east")
    orphans = lake.puts(2)
    assert cli(["reconcile", "--act", "--delete", "--yes"]) == 0
    (run,) = lake.lake.reconciler.runs()
    assert run.asked == Asked(act=True, delete=True) and not any(there(orphans))
    assert set(lake.states(run.id).values()) == {SweptState.PURGED}
    os.unlink(lake.data_files()[0])
    assert cli(["reconcile", "--act", "--delete", "--yes"]) == 0
    assert lake.lake.reconciler.runs()[0].outcome.done.missing == 0
    assert cli(["reconcile", "--act", "--accept-loss", "--yes"]) == 0
    run = lake.lake.reconciler.runs()[0]
    assert run.asked == Asked(act=True, accept_loss=True) and run.outcome.done.missing == 1
    with lake.lake.ledger.read() as connection:
        assert sum(x.rows or 0 for x in losses.of_sink(connection, sinks.get(connection, "behind"))) == 3
        [progress] = followers.list_progress(connection, lake.lake.dataset("events"))
        assert progress.number is None and progress.dropped_upto == 3
    [dropped] = [e for e in lake.lake.audit_events(50) if e.event == Event.FOLLOWER_ROWS_DROPPED]
    assert (dropped.detail["follower"], dropped.detail["rows"]) == ("east", 3)


def test_the_shell_is_told_what_did_not_go_through(lake: WholeLake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.put("stray.parquet", content=b"old")
    run = lake.run(ACT)
    lake.put("stray.parquet", content=b"newer")
    assert cli(["reconcile", "restore", str(run.id)]) == 1
    assert cli(["reconcile", "purge"]) == 3 and "--yes" in capsys.readouterr().err
    lease = reconcile_runs.take_lease(lake.lake.ledger, seconds=60)
    assert lease is not None
    assert cli(["reconcile"]) == 3 and "under way" in capsys.readouterr().err
    reconcile_runs.leases.release(lake.lake.ledger, lease)
    assert cli(["reconcile", "show", "77"]) != 0


def test_a_run_can_act_by_an_inventory(tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3.make_bucket()
    settings = settings_of(s3, bucket)
    given = {name: getattr(settings, name) for name in ("url", "endpoint", "access_key", "secret_key")}
    lake = WholeLake(tmp_path / "lake", {"warehouse": given})
    lake.append()
    told, untold = (
        put_object(s3, bucket, f"lake/default/events/data/{name}.parquet", b"x") for name in ("told", "untold")
    )
    found = list_prefixes(ListedBucket.of(lake.lake.config), [f"s3://{bucket}/lake"], timeout_seconds=60)
    rows = [
        [bucket, f"{folder.removeprefix(f's3://{bucket}/')}/{name}", files.sizes[n], _as_s3_says(files.modified_ns[n])]
        for folder, files in found.folders.items()
        for n, name in enumerate(files.names)
        if f"{folder}/{name}" != untold and files.sizes and files.modified_ns
    ]
    with (tmp_path / "inventory.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    time.sleep(1.1)  # what came in the same second as the run is young
    monkeypatch.chdir(lake.home)
    assert cli(["reconcile", "--inventory", str(tmp_path / "inventory.csv"), "--act", "--yes"]) == 0
    run = lake.lake.reconciler.runs()[0]
    assert run.outcome.done.orphans == 1, json.dumps(run.outcome.protected)
    assert list(lake.states(run.id)) == [told] and lake.count() == 3
    assert lake.run(REPORT).outcome.found.orphans == 1  # the one that the inventory did not have
    lake.lake.close()
