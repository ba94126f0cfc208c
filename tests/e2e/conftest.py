"""Processes of these tests use the JVM of the test run, or start one that compiles quickly rather than well."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import QUICK_JVM, QUICK_SPARK
from tests.processes import jvm_environ

AS_USED = ("test_cluster", "test_demo", "test_secrets", "test_wheel")
"""What users see: each process has a JVM of its own, and Spark makes code for its queries, as it does by itself."""


@pytest.fixture(autouse=True, scope="module")
def _quick_jvms(request: pytest.FixtureRequest) -> Iterator[None]:
    as_used = request.module.__name__.rpartition(".")[2] in AS_USED
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("STRANDLINE_SPARK__OPTIONS", json.dumps(QUICK_JVM if as_used else QUICK_SPARK))
        if not as_used:
            request.getfixturevalue("spark_started")
            for name, value in jvm_environ().items():
                environ.setenv(name, value)
        yield
