"""The list of failpoints, the code that hits them and the tests that kill there name the same points."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path
from types import ModuleType

import strandline
from strandline.core import failpoints

SOURCES = sorted(Path(strandline.__file__).parent.rglob("*.py"))


@cache
def calls() -> list[ast.Call]:
    trees = [ast.parse(source.read_text("utf-8")) for source in SOURCES]
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
    """What the tests of a module are run for, one by one; `name@2` is the second time that the point is reached."""
    found: set[str] = set()
    for _, test in inspect.getmembers(module, inspect.isfunction):
        for mark in getattr(test, "pytestmark", []):
            if mark.name != "parametrize":
                continue
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            if "point" in names:
                cases = (case if len(names) > 1 else (case,) for case in mark.args[1])
                found.update(case[names.index("point")].partition("@")[0] for case in cases)
    return found


def test_the_code_hits_exactly_the_points_that_are_listed() -> None:
    assert hit_in_the_code() == set(failpoints.POINTS)
    assert len(set(failpoints.POINTS)) == len(failpoints.POINTS)


def test_a_process_dies_at_every_point_that_is_listed() -> None:
    """Writers are killed at every point of theirs. A deliverer dies at every point of its own within one JVM (an error
    that nothing survives), and is killed for real at the most telling ones: each costs the start of a JVM. A receiver
    is killed while it takes bodies in, which needs none, and dies within one while it ingests them. Maintenance dies
    within one, too; the reconciler needs none, and is killed."""
    from tests.e2e import test_crash, test_maintain_crash
    from tests.e2e import test_deliver_crash as test_deliverers_killed
    from tests.e2e import test_receive_crash as test_receivers_killed
    from tests.ledger import test_emptied_table as test_recovery_dying
    from tests.ledger import test_ended_batches as test_spoolers_dying
    from tests.receive import test_restored as test_receivers_restored
    from tests.reconcile import test_crash as test_sweepers_killed
    from tests.spark import test_deliver_crash as test_deliverers_dying
    from tests.spark import test_intake as test_receivers_dying

    dying = points_of(test_deliverers_dying) | points_of(test_recovery_dying)
    receivers = points_of(test_receivers_killed) | points_of(test_receivers_dying) | points_of(test_spoolers_dying)
    receivers |= points_of(test_receivers_restored)
    keepers = points_of(test_maintain_crash) | points_of(test_sweepers_killed)
    assert points_of(test_crash) | dying | receivers | keepers == set(failpoints.POINTS)
    assert points_of(test_deliverers_killed) <= dying
