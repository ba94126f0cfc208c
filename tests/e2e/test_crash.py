"""`kill -9` at every named point, in processes of their own; stopped and continued writers; a writer killed at random.

Every point of `failpoints.POINTS` is reached here by name, so one that no code reaches is a failing test.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from strandline import Lake
from strandline.core import failpoints
from strandline.core.settings import LakeConfig
from strandline.iceberg.schema.schema_file import parse_columns
from tests.campaign import scaled
from tests.processes import own_jvm, python
from tests.spark.protocol import (
    COLUMNS,
    assert_sound,
    branches,
    copy_ledger,
    crash_at,
    frame,
    ids,
    new_lake,
    outlive_lease,
    restore_ledger,
    states,
)

pytestmark = pytest.mark.timeout(900)

BEFORE = list(range(1000, 1010))
BATCH = list(range(10))
ROOT = Path(__file__).parents[2]
Command = Callable[..., list[str]]


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig], spark_started: object) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home, adopt_rows_max=20) as made:
        made.append("events", frame(made, 1000), batch_id="before")
        yield made


def start(lake: Lake, *arguments: str, failpoint: str = "", run: Command = python) -> subprocess.Popen[str]:
    return subprocess.Popen(
        run("tests.e2e.writer", str(lake.config.home), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"STRANDLINE_FAILPOINT": failpoint},
    )


def killed_at(lake: Lake, point: str, *arguments: str, run: Command = python) -> None:
    process = start(lake, *arguments, failpoint=f"{point}=kill", run=run)
    out, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, f"{point} was not reached: {out} {err}"


def points(stage: str) -> list[str]:
    return [p for p in failpoints.POINTS if p.startswith(stage)]


INGEST = [p for stage in ("reserve", "stage", "publish", "settle") for p in points(f"{stage}.")]


@pytest.mark.parametrize("point", INGEST)
def test_a_writer_killed_at_any_step_of_ingest_loses_and_doubles_nothing(lake: Lake, point: str) -> None:
    killed_at(lake, point, "append", "a", "0", "10")
    assert set(ids(lake)) <= set(BEFORE + BATCH)
    outlive_lease(lake)
    lake.recover()
    assert "reserved" not in states(lake) and "staged" not in states(lake)
    assert_sound(lake, sorted(ids(lake)))
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


def test_a_writer_killed_together_with_its_jvm_is_recovered_from(lake: Lake) -> None:
    killed_at(lake, "stage.after_mark", "append", "a", "0", "10", run=own_jvm)
    assert len(lake.recover().published) == 1
    assert_sound(lake, BEFORE + BATCH)


@pytest.mark.parametrize("point", points("abandon."))
def test_a_recoverer_killed_while_it_abandons_is_recovered_from(lake: Lake, point: str) -> None:
    crash_at(lake, "stage.after_branch", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    outlive_lease(lake)
    killed_at(lake, point, "recover")
    outlive_lease(lake)
    lake.recover()
    assert_sound(lake, BEFORE)
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


@pytest.mark.parametrize("point", points("open."))
def test_a_process_killed_while_it_opens_a_restored_ledger_is_gone_on_from(lake: Lake, point: str) -> None:
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 20), batch_id="b"))
    restore_ledger(lake, copy)
    killed_at(lake, point, "recover")
    lake.recover()
    assert_sound(lake, BEFORE + BATCH + list(range(20, 30)))
    assert lake.append("events", frame(lake, 20), batch_id="b").duplicate


@pytest.mark.parametrize("point", points("postponed."))
def test_a_process_killed_while_it_opens_a_dataset_later_is_gone_on_from(lake: Lake, point: str) -> None:
    lake.create_dataset("other", parse_columns(COLUMNS))
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 20), batch_id="b"))
    restore_ledger(lake, copy)
    folder = lake.config.warehouse_folder
    assert folder is not None
    metadata, away = (folder / "default" / "events" / name for name in ("metadata", "away"))
    metadata.rename(away)
    assert lake.recover().troubled == ["default.events"]
    away.rename(metadata)
    killed_at(lake, point, "recover")
    lake.recover()
    assert_sound(lake, BEFORE + BATCH + list(range(20, 30)))
    assert lake.append("events", frame(lake, 20), batch_id="b").duplicate


@pytest.mark.parametrize("point", points("adopt."))
def test_a_process_killed_while_it_numbers_old_rows_is_taken_over(lake: Lake, point: str) -> None:
    lake.spark.sql("CREATE TABLE lake.default.old (id BIGINT, text STRING) USING iceberg")
    for start_at in (0, 20, 40):
        frame(lake, start_at, 20, 1).writeTo("lake.default.old").append()
    killed_at(lake, point, "adopt", "old")
    outlive_lease(lake)
    lake.adopt_dataset("old")
    assert_sound(lake, list(range(60)), "old")
    assert lake.status().datasets[1].unnumbered == 0


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None and time.monotonic() < deadline, "it did not stop"
        time.sleep(0.05)


def test_a_writer_stopped_before_its_staged_commit_and_declared_dead_is_fenced(lake: Lake) -> None:
    process = start(lake, "append", "a", "0", "10", failpoint="stage.before_commit=stop")
    wait_until_stopped(process)
    outlive_lease(lake)
    assert len(lake.recover().abandoned) == 1
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate()
    assert process.returncode == 1 and json.loads(out)["error"] == "BlockLost"
    assert_sound(lake, BEFORE)
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


def test_a_writer_stopped_after_staging_is_published_once_by_recovery_and_reports_that(lake: Lake) -> None:
    process = start(lake, "append", "a", "0", "10", failpoint="stage.after_commit=stop")
    wait_until_stopped(process)
    outlive_lease(lake)
    assert len(lake.recover().published) == 1
    assert_sound(lake, BEFORE + BATCH)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate()
    assert process.returncode == 0 and json.loads(out)["rows"] == "11..20"
    assert_sound(lake, BEFORE + BATCH)


def test_a_writer_stopped_after_its_commit_point_publishes_nothing_twice(lake: Lake) -> None:
    process = start(lake, "append", "a", "0", "10", failpoint="publish.before_commit=stop")
    wait_until_stopped(process)
    assert len(lake.recover().published) == 1
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    assert_sound(lake, BEFORE + BATCH)


def test_a_writer_killed_at_random_loses_no_acknowledged_batch_and_doubles_none(lake: Lake) -> None:
    choose = random.Random(20261115)
    acknowledged: set[int] = set()
    for _ in range(scaled(3, 12)):
        process = start(lake, "append-many", "0", "12")
        assert process.stdout is not None
        wanted = choose.randint(1, 6)
        for line in process.stdout:
            acknowledged.add(json.loads(line).get("acknowledged", -1))
            wanted -= 1
            if wanted == 0:
                break
        time.sleep(choose.uniform(0, 0.6))
        process.kill()
        process.communicate()
        outlive_lease(lake)
        lake.recover()
        found = {i // 10 for i in ids(lake) if i < 1000}
        assert acknowledged <= found | {-1}, "an acknowledged batch is not there"
        assert branches(lake) == []
    process = start(lake, "append-many", "0", "12")
    assert process.wait() == 0
    assert_sound(lake, BEFORE + list(range(120)))
