"""The list of failpoints, the code that hits them and the tests that kill there name the same points."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import strandline
from strandline import failpoints

SOURCES = sorted(Path(strandline.__file__).parent.rglob("*.py"))


def calls() -> Iterator[ast.Call]:
    for source in SOURCES:
        yield from (node for node in ast.walk(ast.parse(source.read_text("utf-8"))) if isinstance(node, ast.Call))


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


def killed_at_in_tests() -> set[str]:
    from tests.e2e import test_crash

    found: set[str] = set()
    for _, test in inspect.getmembers(test_crash, inspect.isfunction):
        for mark in getattr(test, "pytestmark", []):
            if mark.name == "parametrize" and mark.args[0] == "point":
                found.update(mark.args[1])
    return found


def test_the_code_hits_exactly_the_points_that_are_listed() -> None:
    assert hit_in_the_code() == set(failpoints.POINTS)
    assert len(set(failpoints.POINTS)) == len(failpoints.POINTS)


def test_a_writer_is_killed_at_every_point_that_is_listed() -> None:
    assert killed_at_in_tests() == set(failpoints.POINTS)
