"""Everything in this folder runs in one JVM, which starts before the first test, so that it is ready for S3 as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.deliver import sink_kinds
from tests.conftest import MakeHome
from tests.spark.followed import Pair, new_pair
from tests.spark.lakes import create, new_lake

if TYPE_CHECKING:
    from strandline.lake import Lake


@pytest.fixture(autouse=True, scope="session")
def _one_jvm(spark_started: object) -> None:
    pass


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Pair]:
    """One leader and one follower for all tests of a file: each test leaves them equal."""
    with new_pair(tmp_path_factory.mktemp("pair"), make_home) as made:
        yield made


@pytest.fixture
def lake(tmp_path: Path, make_home: MakeHome) -> Iterator[Lake]:
    """A lake with one dataset of numbers. A file that needs another one has a fixture of its own."""
    with new_lake(tmp_path / "lake", make_home) as lake:
        create(lake, "events", {"n": "long"})
        yield lake


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a sink."""
    return tmp_path / "out"


@pytest.fixture
def flaky_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind `flaky`, whose sinks fail as a test says."""
    monkeypatch.setitem(sink_kinds._BUILT_IN, "flaky", "tests.spark.flaky:KIND")
