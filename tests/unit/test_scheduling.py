"""A test run warms up as few JVMs as can do its work in time, and hands out each file once, the longest first."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scheduling import WARM_UP_SECONDS, ByJvm


class Node:
    """A process of the run, which does what it is told when the test says so."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[str] = []
        self.collection: list[str] = []
        self.open: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.open += indices
        self.given += dict.fromkeys(self.collection[i].partition("::")[0] for i in indices)

    def shutdown(self) -> None:
        self.shutting_down = True


def handed_out(files: Mapping[str, float], processes: int) -> list[list[str]]:
    """To each process; those with the least to do so far end their tests first. A file has three tests."""
    config: Any = SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=False), getvalue=lambda _: [f"{processes}*popen"]
    )
    scheduling = ByJvm(config, None, lambda file: file.startswith("jvm"), files.__getitem__)
    nodes = [Node(f"gw{n}") for n in range(processes)]
    collection = [f"{file}::test_{n}" for file in sorted(files, key=lambda f: -files[f]) for n in range(3)]
    spent = dict.fromkeys(range(processes), 0.0)
    for node in nodes:
        scheduling.add_node(node)
    for node in nodes:
        node.collection = collection
        scheduling.add_node_collection(node, collection)
    scheduling.schedule()
    while busy := [n for n, node in enumerate(nodes) if node.open]:
        n = min(busy, key=spent.__getitem__)
        index = nodes[n].open.pop(0)
        spent[n] += files[collection[index].partition("::")[0]] / 3
        scheduling.mark_test_complete(nodes[n], index)
    assert not scheduling.has_pending
    return [node.given for node in nodes]


def test_the_last_process_warms_up_no_jvm_where_the_others_can_do_it() -> None:
    files = {f"jvm{n}": 100.0 - n for n in range(6)} | {f"plain{n}": 90.0 - n for n in range(3)}
    *with_jvm, without = handed_out(files, 3)
    assert without == ["plain0", "plain1", "plain2"]
    assert sorted(chain.from_iterable(with_jvm)) == [f"jvm{n}" for n in range(6)]


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_each_file_is_handed_out_once_and_nobody_idles_while_there_is_much_to_do(processes: int) -> None:
    files = {f"jvm{n}": WARM_UP_SECONDS * 2.0 for n in range(12)} | {"plain": 5.0}
    given = handed_out(files, processes)
    assert sorted(chain.from_iterable(given)) == sorted(files)
    assert all(len(some) > 1 for some in given)
