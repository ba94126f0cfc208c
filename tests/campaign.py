"""Long campaigns: `make torture` runs them at full length, `make test` in a short form.

A test whose length can be chosen takes it from `scaled`. A test that has no short form is marked `torture` and runs
only there.

A campaign that rolls dice takes its seed from `seed`. `make test` always rolls the same, `make torture` rolls anew each
time. Every run says its seed, and `STRANDLINE_SEED` repeats it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

_SEED = "STRANDLINE_SEED"
TORTURE = os.environ.get("STRANDLINE_TORTURE", "").lower() not in ("", "0", "false")


def scaled(short: int, long: int) -> int:
    """How many rounds, seeds or kills: `short` in `make test`, `long` in `make torture`."""
    return long if TORTURE else short


def in_torture(*values: Any) -> ParameterSet:
    """A case of a parametrized test that only `make torture` runs: cheaper tests, or other cases, prove the same."""
    return pytest.param(*values, marks=pytest.mark.torture)


def choose_seed() -> None:
    """Once, before test processes start: they inherit it, so that one number repeats the whole run."""
    if TORTURE:
        os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(1 << 32)))


def seed(default: int) -> int:
    """Printed, so that pytest shows it beside a failure."""
    chosen = int(os.environ.get(_SEED) or default)
    print(f"{_SEED}={chosen}")
    return chosen


def report_fired(record: Callable[[str, object], None], fired: Mapping[str, int], default_seed: int) -> None:
    """Puts the seed of a campaign, and how often each fault has fired, into the report of the tests, and prints it.
    `record` is the fixture `record_property`."""
    record("seed", seed(default_seed))
    for fault, count in sorted(fired.items()):
        record(f"fired: {fault}", count)
        print(f"{count:4} {fault}")


class Decks:
    """Deals faults of each kind in a random order, each as often as the others, over all runs of a campaign."""

    def __init__(self) -> None:
        self._left: dict[str, list[str]] = {}
        self.dealt: set[str] = set()

    def deal(self, choose: random.Random, kind: str, names: Collection[str], prefix: str = "") -> str:
        """The next name. `prefix` and name are how the campaign counts that it fired."""
        if not (left := self._left.setdefault(kind, [])):
            left += choose.sample(sorted(names), len(names))
        name = left.pop()
        self.dealt.add(prefix + name)
        return name

    def take_back(self, kind: str, name: str, prefix: str = "") -> None:
        """It could not happen; it is dealt again."""
        self._left[kind].append(name)
        self.dealt.discard(prefix + name)
