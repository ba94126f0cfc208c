"""Everything in this folder runs in one JVM, which starts before the first test, so that it is ready for S3 as well."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_jvm(spark_started: object) -> None:
    pass
