"""Everything in this folder runs in one JVM, which starts before the first test, so that it is ready for S3 as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import MakeHome
from tests.spark.followed import Pair, new_pair


@pytest.fixture(autouse=True, scope="session")
def _one_jvm(spark_started: object) -> None:
    pass


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Pair]:
    """One leader and one follower for all tests of a file: each test leaves them equal."""
    with new_pair(tmp_path_factory.mktemp("pair"), make_home) as made:
        yield made
