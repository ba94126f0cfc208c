"""Processes of these tests live for seconds, so their JVMs compile quickly rather than well."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import QUICK_JVM, QUICK_SPARK

AS_USED = ("test_cluster", "test_demo")
"""What users see: here Spark makes code for its queries, as it does by itself."""


@pytest.fixture(autouse=True, scope="module")
def _quick_jvms(request: pytest.FixtureRequest) -> Iterator[None]:
    options = QUICK_JVM if request.module.__name__.rpartition(".")[2] in AS_USED else QUICK_SPARK
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("STRANDLINE_SPARK__OPTIONS", json.dumps(options))
        yield
