"""`kill -9` in processes of their own; stopped and continued writers; a writer killed at random.

One point of each kind of step is killed at (`KILLED`); `make torture` kills at all of them. The tests of tests/spark
die at every point within one process.
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
from typing import Any

import pytest

from strandline import Lake
from strandline.core import failpoints
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.schema.schema_file import parse_columns
from tests.campaign import scaled
from tests.fork_server import ROOT, Forked
from tests.processes import own_jvm
from tests.spark.protocol import (
    COLUMNS,
    assert_sound,
    branches,
    crash_at,
    forget_two_batches,
    frame,
    ids,
    new_lake,
    outlive_lease,
    states,
    unreadable,
)

pytestmark = pytest.mark.timeout(900)

BEFORE = list(range(1000, 1010))
BATCH = list(range(10))
KILLED = (
    "reserve.after_witness",
    "stage.after_commit",
    "publish.after_commit",
    "settle.after_mark",
    "abandon.after_commit",
    "resync.after_epoch",
    "postponed.after_roll_forward",
    "adopt.after_commit",
)
"""The witness is written, the table is changed, or the ledger is: of each one, in each part of the protocol."""


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig], spark_started: object) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home, adopt_rows_max=20) as made:
        made.append("events", frame(made, 1000), batch_id="before")
        yield made


def start(lake: Lake, *arguments: str, failpoint: str = "") -> Forked:
    return Forked(
        ["tests.e2e.writer", str(lake.config.home), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"STRANDLINE_FAILPOINT": failpoint},
    )


def killed_at(lake: Lake, point: str, *arguments: str) -> None:
    process = start(lake, *arguments, failpoint=f"{point}=kill")
    out, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, f"{point} was not reached: {out} {err}"


def points(*stages: str) -> list[Any]:
    of_these = [p for p in failpoints.POINTS if p.partition(".")[0] in stages]
    return [pytest.param(p, marks=[] if p in KILLED else pytest.mark.torture) for p in of_these]


def test_a_process_of_these_tests_attaches_to_the_jvm_of_the_test_run(lake: Lake) -> None:
    """Or each has one of its own, and takes ten times as long."""
    out, err = start(lake, "application").communicate()
    assert json.loads(out) == {"application": lake.spark.sparkContext.applicationId}, err


@pytest.mark.parametrize("point", points("reserve", "stage", "publish", "settle"))
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
    command = own_jvm("tests.e2e.writer", str(lake.config.home), "append", "a", "0", "10")
    killed = subprocess.run(command, cwd=ROOT, env=os.environ | {"STRANDLINE_FAILPOINT": "stage.after_mark=kill"})
    assert killed.returncode == -signal.SIGKILL
    assert len(lake.recover().published) == 1
    assert_sound(lake, BEFORE + BATCH)


@pytest.mark.parametrize("point", points("abandon"))
def test_a_recoverer_killed_while_it_abandons_is_recovered_from(lake: Lake, point: str) -> None:
    crash_at(lake, "stage.after_branch", lambda: lake.append("events", frame(lake, 0), batch_id="a"))
    outlive_lease(lake)
    killed_at(lake, point, "recover")
    outlive_lease(lake)
    lake.recover()
    assert_sound(lake, BEFORE)
    lake.append("events", frame(lake, 0), batch_id="a")
    assert_sound(lake, BEFORE + BATCH)


@pytest.mark.parametrize("point", points("resync"))
def test_a_process_killed_while_it_opens_a_restored_ledger_is_gone_on_from(lake: Lake, point: str) -> None:
    forget_two_batches(lake)
    killed_at(lake, point, "recover")
    lake.recover()
    assert_sound(lake, BEFORE + BATCH + list(range(20, 30)))
    assert lake.append("events", frame(lake, 20), batch_id="b").duplicate


@pytest.mark.parametrize("point", points("postponed"))
def test_a_process_killed_while_it_opens_a_dataset_later_is_gone_on_from(lake: Lake, point: str) -> None:
    lake.create_dataset("other", parse_columns(COLUMNS))
    forget_two_batches(lake)
    with unreadable(lake, "events"):
        assert lake.recover().troubled == ["default.events"]
    killed_at(lake, point, "recover")
    lake.recover()
    assert_sound(lake, BEFORE + BATCH + list(range(20, 30)))
    assert lake.append("events", frame(lake, 20), batch_id="b").duplicate


@pytest.mark.parametrize("point", points("adopt"))
def test_a_process_killed_while_it_numbers_old_rows_is_taken_over(lake: Lake, point: str) -> None:
    lake.spark.sql("CREATE TABLE lake.default.old (id BIGINT, text STRING) USING iceberg")
    for start_at in (0, 20, 40):
        frame(lake, start_at, 20, 1).writeTo("lake.default.old").append()
    killed_at(lake, point, "adopt", "old")
    outlive_lease(lake)
    lake.adopt_dataset("old")
    assert_sound(lake, list(range(60)), "old")
    assert lake.status().datasets[1].unnumbered == 0


def test_a_writer_stopped_before_its_staged_commit_and_declared_dead_is_fenced(lake: Lake) -> None:
    process = start(lake, "append", "a", "0", "10", failpoint="stage.before_commit=stop")
    process.wait_until_stopped(300)
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
    process.wait_until_stopped(300)
    outlive_lease(lake)
    assert len(lake.recover().published) == 1
    assert_sound(lake, BEFORE + BATCH)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate()
    assert process.returncode == 0 and json.loads(out)["rows"] == "11..20"
    assert_sound(lake, BEFORE + BATCH)


def test_a_writer_stopped_after_its_commit_point_publishes_nothing_twice(lake: Lake) -> None:
    process = start(lake, "append", "a", "0", "10", failpoint="publish.before_commit=stop")
    process.wait_until_stopped(300)
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
