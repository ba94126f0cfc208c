"""Processes of these tests use the JVM of the test run, or start one that compiles quickly rather than well."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import AS_USED, QUICK_JVM, QUICK_SPARK
from tests.processes import jvm_environ

WITH_CODE = ("test_cluster", "test_secrets", "test_wheel")
"""Spark makes code for its queries, as it does by itself."""


@pytest.fixture(autouse=True, scope="module")
def _quick_jvms(request: pytest.FixtureRequest) -> Iterator[None]:
    name = request.module.__name__.rpartition(".")[2]
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("STRANDLINE_SPARK__OPTIONS", json.dumps(QUICK_JVM if name in WITH_CODE else QUICK_SPARK))
        if name not in AS_USED:
            request.getfixturevalue("spark_started")
            for name, value in jvm_environ().items():
                environ.setenv(name, value)
        yield
