"""Processes of these tests live for seconds, so their JVMs compile quickly rather than well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import QUICK_JVM


@pytest.fixture(autouse=True, scope="package")
def _quick_jvms() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("STRANDLINE_SPARK__OPTIONS", QUICK_JVM)
        yield
