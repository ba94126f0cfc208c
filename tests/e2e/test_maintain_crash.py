"""Maintenance that dies before and after each of its durable steps: the next run finishes what it left, and no sink
loses a row by it or gets one twice.

At every point within one JVM, by an error that nothing survives: the run stays open in the ledger, and not a word of
how it ended gets there. At one point of each kind of maintenance a real process is killed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.core import failpoints
from strandline.core.errors import AlreadyRunning
from strandline.ledger.deliver import losses
from strandline.ledger.maintain import runs
from tests.campaign import in_torture
from tests.conftest import MakeHome
from tests.fork_server import run_forked
from tests.servers import S3, Postgres
from tests.spark.deliveries import in_folder, outlive_lease
from tests.spark.shore import Shore, open_shore

pytestmark = pytest.mark.timeout(900)

WAIT_SECONDS_MAX = 180


@pytest.fixture(scope="module")
def shore(
    tmp_path_factory: pytest.TempPathFactory,
    make_home: MakeHome,
    s3: S3,
    postgres_server: Postgres,
    spark_started: object,
) -> Iterator[Shore]:
    folder, kinds = tmp_path_factory.mktemp("shore"), ("files", "postgres")
    with open_shore(folder, make_home, s3, postgres_server, by_lane=False, kinds=kinds) as made:
        yield made


def work_of(shore: Shore, kind: str) -> Callable[[], None]:
    works: dict[str, Callable[[], None]] = {
        "compact": shore.compact,
        "retain": shore.retain,
        "expire": shore.expire,
        "purge": lambda: shore.purge(forgotten(shore)),
    }
    return works[kind]


def forgotten(shore: Shore) -> str:
    """A row that was delivered, and that a person asks to be forgotten."""
    return f"n = {shore.rows - 10}"


def command(shore: Shore, kind: str) -> list[str]:
    commands = {
        "compact": ["compact", "events"],
        "retain": ["retain", "events", "--older-than", "0s", "--accept-clock"],
        "expire": ["expire", "events", "--older-than", "0s", "--keep-min", "1"],
        "purge": ["purge", "events", "--where", forgotten(shore), "--yes"],
    }
    return commands[kind]


DROP_MARKS = "retain.after_drop_marks"
"""Only where rows are dropped that a sink has not got."""
CALLED_OFF = "maintain.after_called_off"
"""Only where a run is called off: tests/ledger/test_called_off.py."""


def points(kind: str, *stages: str) -> list[tuple[str, str]]:
    left_out = (DROP_MARKS, CALLED_OFF)
    return [(kind, p) for p in failpoints.POINTS if p.partition(".")[0] in stages and p not in left_out]


STEPS = [
    *points("compact", "compact", "settled"),
    *points("retain", "retain", "floor", "maintain"),
    *points("expire", "expire"),
    *points("purge", "purge"),
]
KILLED = [
    ("compact", "compact.before_commit"),
    ("retain", "retain.after_floor"),
    ("expire", "expire.after_settle"),
    ("purge", "purge.after_table"),
]
"""A real process is, here. Within this process something dies at all other points."""


def dies_at(point: str, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as dead:
        dead.setattr(runs, "end", lambda *_, **__: None)
        failpoints.arm(f"{point}=fail")
        try:
            with pytest.raises(failpoints.FailpointError, match=point):
                work()
        finally:
            failpoints.arm("")


def killed_at(shore: Shore, kind: str, point: str) -> None:
    process = run_forked(
        ["strandline.cli.main", *command(shore, kind), "--json"],
        cwd=shore.lake.config.home, env=os.environ | {"STRANDLINE_FAILPOINT": f"{point}=kill"},
        timeout=WAIT_SECONDS_MAX,
    )  # fmt: skip
    assert process.returncode == -signal.SIGKILL, f"{point} was not reached: {process.stdout} {process.stderr}"


def silent_for_long(shore: Shore) -> None:
    """As if the run that died had given no sign of life for an hour."""
    with shore.lake.ledger.write() as connection:
        connection.exec_driver_sql(
            "UPDATE maintenance_run SET heartbeat_at = heartbeat_at - 3600000000 WHERE ended_at IS NULL"
        )


def survives(shore: Shore, kind: str, death: Callable[[], None]) -> None:
    """Rows come and are delivered while the dead run seems to be under way, and the next one does its work."""
    shore.ingest()
    shore.drain()
    shore.ingest(5)
    waiting = {seq for seq, _ in shore.known[-5:]}
    death()
    assert waiting <= set(shore.left()), "no sink has them"
    if kind == "purge":  # one that is killed keeps the sinks for as long as a lease lasts
        outlive_lease(shore.lake)
    shore.deliver()
    silent_for_long(shore)
    work_of(shore, kind)()
    outcomes = [run.outcome for run in shore.lake.maintenance.runs("events", kind, runs_max=2)]
    assert outcomes == [runs.MaintenanceOutcome.DONE, runs.MaintenanceOutcome.DIED]
    if kind == "retain":
        assert shore.left() == [], "every sink has every row"
    if kind == "purge":
        assert shore.left(forgotten(shore)) == []
        assert_purge_has_a_number(shore)
    for name, destination in shore.sinks.items():
        assert destination.see().rows == shore.wanted(name), name


def assert_purge_has_a_number(shore: Shore) -> None:
    """Followers learn of it by an item above everything that it could find, whichever run got so far."""
    (number,) = (seq for seq, n in shore.known if n == shore.rows - 10)
    query = "SELECT lo, ranges, state, shard FROM block WHERE item = 'purge' AND dataset_id = {} ORDER BY lo DESC"
    dataset = shore.lake.dataset("events")
    with shore.lake.ledger.read() as connection:
        items = connection.exec_driver_sql(query.format(dataset.id)).all()
    covering = [i for i in items if any(lo <= number <= hi for lo, hi in json.loads(i.ranges))]
    assert covering and all(i.lo > number and i.state == "published" and i.shard is None for i in covering)
    assert (shore.lake.sealed("events") or 0) >= covering[0].lo


@pytest.mark.parametrize(("kind", "point"), [in_torture(*step) if step in KILLED else step for step in STEPS])
def test_maintenance_that_dies_at_any_step_is_done_by_the_next_run(
    shore: Shore, kind: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def death() -> None:
        dies_at(point, work_of(shore, kind), monkeypatch)
        with pytest.raises(AlreadyRunning):  # nobody knows yet that it is dead
            work_of(shore, kind)()

    survives(shore, kind, death)


@pytest.mark.parametrize("point", [DROP_MARKS])
def test_retention_that_dies_when_it_has_passed_a_sink_over_deletes_what_it_counted_as_lost(
    shore: Shore, point: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shore.drain()
    shore.lake.delivery.add("late", "events", "files", {"path": str(tmp_path / "late")}, from_now=True)
    shore.lake.delivery.pause("late")
    shore.ingest()
    shore.deliver()
    assert shore.left() != []
    dies_at(point, lambda: shore.retain(paused_sinks="ignore"), monkeypatch)
    silent_for_long(shore)
    shore.retain(paused_sinks="ignore")
    assert shore.left() == []
    with shore.lake.ledger.read() as connection:
        assert sum(x.rows or 0 for x in losses.of_sink(connection, shore.lake.delivery.get("late"))) == 10
    shore.lake.delivery.resume("late")
    shore.ingest()
    shore.drain()
    late = in_folder(tmp_path / "late").see().rows
    shore.lake.delivery.remove("late")
    assert late == sorted(shore.known[-10:]), "it goes on behind what it lost"


@pytest.mark.parametrize(("kind", "point"), KILLED)
def test_maintenance_that_is_killed_is_done_by_the_next_run(shore: Shore, kind: str, point: str) -> None:
    survives(shore, kind, lambda: killed_at(shore, kind, point))


def test_after_all_of_it_every_sink_is_proved_to_be_whole(shore: Shore) -> None:
    shore.drain()
    shore.is_whole()
