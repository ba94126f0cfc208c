"""The list of failpoints, the code that hits them and the tests that kill there name the same points."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path
from types import ModuleType

from _pytest.mark import ParameterSet

import strandline
from strandline.core import failpoints

SOURCES = sorted(Path(strandline.__file__).parent.rglob("*.py"))


@cache
def calls() -> list[ast.Call]:
    """Of the modules that may hit a point, or name the step of one."""
    texts = (source.read_text("utf-8") for source in SOURCES)
    trees = [ast.parse(text) for text in texts if "failpoints" in text or "step=" in text]
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]


@cache
def steps() -> set[str]:
    """Whoever takes numbers says for which step; the ledger's sequence makes the names of two points of it."""
    said = [k.value for call in calls() for k in call.keywords if k.arg == "step"]
    return {value.value for value in said if isinstance(value, ast.Constant) and isinstance(value.value, str)}


def hit_in_the_code() -> set[str]:
    names: set[str] = set()
    for call in calls():
        if ast.unparse(call.func) != "failpoints.hit":
            continue
        match call.args:
            case [ast.Constant(str(name))]:
                names.add(name)
            case [ast.JoinedStr([ast.FormattedValue(ast.Name("step")), ast.Constant(str(end))])]:
                names |= {step + end for step in steps()}
            case other:
                raise AssertionError(f"a point whose name nobody can look up: {ast.unparse(other[0])}")
    return names


def points_of(module: ModuleType) -> set[str]:
    """What the tests of a module are run for, one by one, not only in `make torture`; `name@2` is the second time that
    the point is reached."""
    found: set[str] = set()
    for _, test in inspect.getmembers(module, inspect.isfunction):
        for mark in getattr(test, "pytestmark", []):
            if mark.name != "parametrize":
                continue
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            if "point" in names:
                cases = [ParameterSet.extract_from(case, force_tuple=len(names) == 1) for case in mark.args[1]]
                every_time = [case.values for case in cases if not any(m.name == "torture" for m in case.marks)]
                found.update(str(values[names.index("point")]).partition("@")[0] for values in every_time)
    return found


def test_the_code_hits_exactly_the_points_that_are_listed() -> None:
    assert hit_in_the_code() == set(failpoints.POINTS)
    assert len(set(failpoints.POINTS)) == len(failpoints.POINTS)


def test_something_dies_at_every_point_that_is_listed() -> None:
    """Within one process, at every point, by an error that nothing survives; the reconciler needs no JVM and is killed.
    At one point of each kind of step real processes are killed as well."""
    from tests.apply import test_apply
    from tests.e2e import test_crash as writers_killed
    from tests.e2e import test_deliver_crash as deliverers_killed
    from tests.e2e import test_follow_killed as followers_killed
    from tests.e2e import test_follower_remove_killed, test_maintain_crash
    from tests.e2e import test_receive_crash as receivers_killed
    from tests.e2e import test_takeover_killed as take_overs_killed
    from tests.ledger import (
        test_called_off,
        test_cuts,
        test_emptied_table,
        test_ended_batches,
        test_following,
        test_lease,
        test_promotions,
        test_rejoin,
        test_tasks,
    )
    from tests.receive import test_restored
    from tests.reconcile import test_crash as reconcilers_killed
    from tests.spark import (
        test_adopt,
        test_cut,
        test_deliver_crash,
        test_follow_crash,
        test_intake,
        test_migrate,
        test_promote,
        test_received_takeover,
        test_recover,
        test_resync,
        test_shards,
    )
    from tests.unit import test_arbiter_record, test_followed_tables

    writers = points_of(test_recover) | points_of(test_resync) | points_of(test_adopt) | points_of(test_shards)
    deliverers = points_of(test_deliver_crash) | points_of(test_emptied_table)
    receivers = points_of(receivers_killed) | points_of(test_intake) | points_of(test_ended_batches)
    receivers |= points_of(test_restored)
    keepers = points_of(test_maintain_crash) | points_of(reconcilers_killed)
    keepers |= points_of(test_tasks) | points_of(test_called_off)
    keepers |= points_of(test_apply) | points_of(test_migrate)
    followers = points_of(test_following) | points_of(test_follow_crash) | points_of(test_cuts)
    followers |= points_of(test_arbiter_record) | points_of(test_followed_tables)
    followers |= points_of(test_promote) | points_of(test_promotions)
    followers |= points_of(test_received_takeover)
    followers |= points_of(test_rejoin) | points_of(test_cut) | points_of(test_lease)
    followers |= points_of(test_follower_remove_killed)
    assert writers | deliverers | receivers | keepers | followers == set(failpoints.POINTS)
    assert points_of(writers_killed) == set(writers_killed.KILLED) <= writers
    assert points_of(deliverers_killed) <= deliverers
    assert points_of(followers_killed) == set(followers_killed.KILLED)
    kinds = {"follower", "arbiter", "promote", "rejoin", "cut"}
    assert {point.partition(".")[0] for point in take_overs_killed.KILLED} == kinds
    every_one = {point for point in failpoints.POINTS if point.partition(".")[0] in kinds}
    assert every_one <= set(take_overs_killed.ALL) >= set(take_overs_killed.KILLED)
