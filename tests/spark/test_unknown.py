"""Commits whose outcome is unknown, in both truths: landed, and not landed. Read back, never assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from strandline import Lake
from strandline.core.errors import CommitUnknown
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.spark.tables import SparkTables
from strandline.ingest import stage as stage_rows
from tests.spark.protocol import assert_sound, frame, new_lake, outlive_lease, states


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home, commit_attempts_max=4) as made:
        made.append("events", frame(made, 1000), batch_id="before")
        yield made


BEFORE = list(range(1000, 1010))


class LostAnswer:
    """A transaction whose commit lands or does not, and then says that nobody knows."""

    def __init__(self, target: Any, jvm: Any, faults: list[str]) -> None:
        self._target, self._jvm, self._faults = target, jvm, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def commitTransaction(self) -> None:
        fault = self._faults.pop(0) if self._faults else "none"
        if fault in ("none", "landed"):
            self._target.commitTransaction()
        if fault != "none":
            cause = self._jvm.java.lang.RuntimeException("the connection was cut")
            raise Py4JJavaError("", self._jvm.org.apache.iceberg.exceptions.CommitStateUnknownException(cause))


class LossyTable:
    def __init__(self, table: Any, jvm: Any, faults: list[str]) -> None:
        self._table, self._jvm, self._faults = table, jvm, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def newTransaction(self) -> LostAnswer:
        return LostAnswer(self._table.newTransaction(), self._jvm, self._faults)


class LossyTables(SparkTables):
    faults: list[str]

    def load(self, name: str) -> Any:
        return LossyTable(super().load(name), self.spark._jvm, self.faults)


def make_lossy(lake: Lake, faults: list[str]) -> None:
    lossy = LossyTables(lake.spark, attempts_max=4)
    lossy.faults = faults
    object.__setattr__(lake.work, "tables", lossy)


@pytest.mark.parametrize(
    "outcomes",  # of the three commits of an append: the branch is made, the rows are staged, the block is published
    [
        ("landed", "landed", "landed"),
        ("lost", "lost", "lost"),
        ("landed", "lost", "landed"),
        ("lost", "landed", "lost"),
    ],
    ids="-".join,
)
def test_whichever_way_an_unknown_commit_went_the_rows_are_there_once(lake: Lake, outcomes: tuple[str, ...]) -> None:
    faults = [fault for outcome in outcomes for fault in ([outcome, "none"] if outcome == "lost" else [outcome])]
    make_lossy(lake, faults)
    lake.append("events", frame(lake, 0), batch_id="a")
    assert not faults, "a commit was not made through the transaction that loses answers"
    assert_sound(lake, BEFORE + list(range(10)))


def test_an_outcome_that_stays_unknown_is_said_and_settled_later(lake: Lake) -> None:
    make_lossy(lake, ["none", "none"] + ["lost"] * 10)  # the branch is made and the rows are staged
    with pytest.raises(CommitUnknown) as unknown:
        lake.append("events", frame(lake, 0), batch_id="a")
    assert unknown.value.retryable and states(lake)[-1] == "staged", "an unknown outcome was taken for a failure"
    make_lossy(lake, [])
    lake.recover()
    assert_sound(lake, BEFORE + list(range(10)))


@pytest.mark.parametrize("landed", [True, False])
def test_a_staged_write_whose_answer_is_lost_is_read_back(
    lake: Lake, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stage_rows.stage

    def stage(*arguments: Any) -> None:
        if landed:
            real(*arguments)
        raise CommitUnknown("the connection was cut")

    monkeypatch.setattr(stage_rows, "stage", stage)
    if landed:
        lake.append("events", frame(lake, 0), batch_id="a")
    else:
        with pytest.raises(CommitUnknown):
            lake.append("events", frame(lake, 0), batch_id="a")
    monkeypatch.undo()
    outlive_lease(lake)
    lake.recover()
    assert lake.append("events", frame(lake, 0), batch_id="a").duplicate == landed
    assert_sound(lake, BEFORE + list(range(10)))
