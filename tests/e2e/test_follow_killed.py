"""Followers in processes of their own: killed at each durable step, stopped and taken for dead, two at once, and with a
ledger that is lost, damaged or from another time.

One point of each kind of step is killed at here (`KILLED`); `make torture` kills at all of them. tests/spark has a
follower die at every point within one process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from strandline import Lake
from strandline.core import failpoints
from strandline.iceberg.schema.alteration import AddColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.witness import LocalWitness
from tests.conftest import MakeHome
from tests.e2e.following import Sites, sites
from tests.spark.followed import assert_same, follow, restarted
from tests.spark.lakes import sql
from tests.spark.protocol import COLUMNS, copy_ledger, frame, outlive_lease, restore_ledger

pytestmark = pytest.mark.timeout(900)

STEPS = ("record", "follow", "behind", "stage", "publish", "settle")
"""Of a follower: those of ingest, too."""
KILLED = (
    "record.after_witness",
    "follow.after_table",
    "follow.after_purge_record",
    "stage.after_commit",
)
"""The witness is written, the table is changed, or the ledger is."""


def points() -> list[Any]:
    found = [p for p in failpoints.POINTS if p.partition(".")[0] in STEPS]
    return [pytest.param(p, marks=[] if p in KILLED else pytest.mark.torture) for p in found]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome, spark_started: object) -> Iterator[Sites]:
    with sites(tmp_path_factory.mktemp("sites"), make_home) as made:
        made.leader.create_dataset("events", parse_columns(COLUMNS))
        made.leader.create_dataset("d0", parse_columns(COLUMNS))
        yield made


@pytest.fixture(scope="module")
def follower(made: Sites) -> Iterator[Lake]:
    """One for all tests: each leaves it equal to its leader."""
    with made.add("east", "http") as lake:
        follow(lake)
        yield lake


@pytest.fixture
def rounds() -> Iterator[int]:
    _ROUNDS.append(1)
    yield len(_ROUNDS)


_ROUNDS: list[int] = []


def everything_happens(leader: Lake, n: int) -> None:
    """What leads a follower through its steps: new and dropped datasets, columns, rows, and rows that are gone when it
    gets there."""
    [old] = [d.name for d in leader.datasets() if d.name != "default.events"]
    leader.drop_dataset(old)
    leader.create_dataset(f"d{n}", parse_columns(COLUMNS))
    leader.alter_dataset("events", [AddColumn(f"c{n}", Primitive("long"))])
    leader.append("events", frame(leader, n * 100, 6), batch_id=f"a{n}")
    leader.append("events", frame(leader, n * 100 + 10, 3), batch_id=f"b{n}")
    sql(leader, f"DELETE FROM lake.default.events WHERE id BETWEEN {n * 100 + 10} AND {n * 100 + 12}")


@pytest.mark.parametrize("point", points())
def test_a_follower_killed_at_any_step_goes_on_and_has_every_row_once(
    made: Sites, follower: Lake, rounds: int, point: str
) -> None:
    leader = made.leader
    copy = copy_ledger(follower, f"{point}.db")
    everything_happens(leader, rounds)
    if "purge" in point:  # what is to be purged must be there
        leader.append("events", frame(leader, rounds * 100 + 50, 2), batch_id=f"purged {point}")
        follow(follower)
        leader.maintenance.purge("events", f"id = {rounds * 100 + 50}")
    if point.startswith("behind."):
        follow(follower)
        restore_ledger(follower, copy)
    made.killed_at(follower, point)
    outlive_lease(follower)
    restarted(follower)
    follow(follower)
    assert_same(leader, follower)
    assert [d.name for d in follower.datasets()] == [d.name for d in leader.datasets()]


def test_a_follower_that_is_stopped_and_taken_for_dead_changes_nothing_when_it_goes_on(
    made: Sites, follower: Lake, rounds: int
) -> None:
    """Before its rows are staged, and before it publishes: meanwhile another process does its work, the leader purges,
    and the follower compacts."""
    leader = made.leader
    zombies = []
    for n, point in enumerate(("stage.before_commit", "publish.before_commit", "record.after_witness")):
        leader.append("events", frame(leader, rounds * 100 + n * 10, 5), batch_id=f"zombie {point}")
        zombies.append(made.start(follower, f"{point}=stop"))
        zombies[-1].wait_until_stopped(300)
        if point.startswith("record"):
            break  # it holds the ledger's lock: nobody else writes meanwhile
        outlive_lease(follower)
        restarted(follower)
        follow(follower)
        assert_same(leader, follower)
    leader.maintenance.purge("events", f"id = {rounds * 100}")
    for zombie in zombies:
        zombie.send_signal(signal.SIGCONT)
    sealed = leader.sealed("events")
    made.wait(lambda: follower.sealed("events") == sealed, "they do not catch up", *zombies)
    for zombie in zombies:
        zombie.kill()
        zombie.wait(60)
    outlive_lease(follower)
    restarted(follower)
    follow(follower)
    assert_same(leader, follower)


@pytest.mark.torture  # tests/spark/test_follow.py and the campaign have several appliers, too
def test_two_followers_of_one_site_share_its_work_while_the_leaders_server_is_killed(
    made: Sites, follower: Lake, rounds: int
) -> None:
    leader = made.leader
    both = [made.start(follower) for _ in range(2)]
    for n in range(4):
        leader.append("events", frame(leader, rounds * 100 + n * 10, 5), batch_id=f"both {n}")
        if n == 1:
            made.kill_server()
            made.serve()
    sealed = leader.sealed("events")
    made.wait(lambda: follower.sealed("events") == sealed, "they do not catch up", *both)
    for process in both:
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    restarted(follower)
    assert_same(leader, follower)


def test_a_follower_whose_ledger_is_ahead_of_its_witness_goes_on(made: Sites, follower: Lake, rounds: int) -> None:
    """As after a restore of the witness: to it, the ledger is from the future."""
    leader = made.leader
    assert isinstance(follower.witness, LocalWitness)
    witness = follower.witness.path.read_bytes()
    leader.append("events", frame(leader, rounds * 100, 5), batch_id="recorded")
    follow(follower)
    follower.witness.path.write_bytes(witness)
    leader.append("events", frame(leader, rounds * 100 + 10, 5), batch_id="not yet")
    restarted(follower)
    follow(follower)
    assert_same(leader, follower)
