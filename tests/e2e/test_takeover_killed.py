"""Processes that are killed at steps of a take-over, one after another: of the leader before it, of the promotion, of
the old leader's rejoin and of its cut. Each goes on where the one before it was killed. Two that stand still in the cut
go on when it is carried out.

Some steps of each kind are killed at here (`KILLED`), and all of them in `make torture`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strandline.iceberg.schema.schema_file import parse_columns
from tests.conftest import MakeHome
from tests.e2e import taking_over
from tests.e2e.following import Sites, sites
from tests.e2e.taking_over import COLUMNS, CUTTING, PROMOTING, REJOINING, STANDING, STOOD, TakeOvers, settings_in
from tests.spark.deliveries import in_folder

pytestmark = pytest.mark.timeout(900)

LEADING = ("follower.after_record",)
KILLED = (
    *LEADING,
    "arbiter.after_put",
    "promote.after_claim",
    "promote.after_witness",
    "rejoin.after_witness",
    "cut.after_files",
    "cut.before_settle",
)
ALL = (*LEADING, *PROMOTING, *REJOINING, *CUTTING)


def some(of: tuple[str, ...], points: tuple[str, ...]) -> list[str]:
    return [point for point in of if point in points]


def made_though_killed(made: Sites, choose: random.Random, points: tuple[str, ...]) -> TakeOvers:
    """Two followers; a command of the leader is killed on the way."""
    lakes = {"leader": made.leader}
    run = TakeOvers(made, choose, lakes, {"files": in_folder(made.folder / "out")})
    made.leader.create_dataset("events", parse_columns(COLUMNS), shards=2)
    made.leader.delivery.add("files", "events", "files", dict(run.sinks["files"].options))
    if "follower.after_record" in points:
        command = ("strandline.cli.main", "follower", "add", "far")
        process = made.command(made.leader, *command, failpoint="follower.after_record=kill")
        run.killed(process, "follower.after_record")
    lakes["far"] = made.add("far", "shared")
    lakes["near"] = made.add("near", "http")
    run.follow()
    return run


@pytest.mark.parametrize("points", [KILLED, pytest.param(ALL, marks=pytest.mark.torture)], ids=["some", "all"])
def test_a_take_over_whose_processes_are_killed_goes_on_to_its_end(
    tmp_path: Path, make_home: MakeHome, spark_started: object, points: tuple[str, ...]
) -> None:
    settings = settings_in(tmp_path)
    with sites(tmp_path, make_home, settings("leader")) as made:
        made.following = settings
        run = made_though_killed(made, random.Random(17), points)
        try:
            run.append(5)
            run.follow()
            run.deliver()
            assert "near" in run.update_members()
            run.sent.clear()
            run.append(5)
            run.follow("near")
            run.append(5)
            made.kill_server()
            made.leader = run.lakes[run.promote("near", *some(PROMOTING, points))]
            made.leader = run.reopen("near")
            made.serve()
            run.deliver()
            run.append(5)
            run.join("leader", *some(REJOINING, points))
            *first, last = some(CUTTING, points)
            run.kill_follower("leader", *first)
            standing = run.stand_still_in_the_cut("leader")
            run.follow_killed("leader", last)
            run.let_go_on("leader", standing)
            run.join("far")
            for batch in run.sent:
                run.send(batch)
            run.check()
        finally:
            run.close()
        stood = [STOOD + point for point in STANDING]
        assert sorted(run.fired) == sorted([*stood, *(taking_over.KILLED + point for point in points)])
