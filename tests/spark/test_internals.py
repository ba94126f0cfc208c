"""The classes of Spark's and Iceberg's Java side that we use are still there. If one of these fails after an upgrade,
mend the module that it names; nothing else calls them."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.iceberg.session.spark_internals import JAVA_METHODS, has_class, jvm_of
from strandline.iceberg.spark import java


@pytest.fixture(scope="module")
def jvm(spark_started: Any) -> Any:
    from pyspark import SparkContext

    return jvm_of(SparkContext.getOrCreate())


@pytest.mark.parametrize(
    ("name", "used", "home"),
    [
        *((name, used, "iceberg/spark/java.py") for name, used in java.METHODS.items()),
        *((name, used, "iceberg/session/spark_internals.py") for name, used in JAVA_METHODS.items()),
    ],
)
def test_a_java_class_still_has_what_we_call(jvm: Any, name: str, used: tuple[str, ...], home: str) -> None:
    from pyspark import SparkContext

    assert has_class(SparkContext.getOrCreate(), name), f"there is no class {name} any more: mend {home}"
    found = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    has = {m.getName() for m in (*found.getMethods(), *found.getDeclaredMethods(), *found.getFields())}
    for method in used:
        assert method in has, f"{name} has no {method} any more: mend {home}"


@pytest.mark.parametrize("name", sorted(java.ERRORS))
def test_an_error_of_iceberg_still_has_a_class_of_its_own(jvm: Any, name: str) -> None:
    from pyspark import SparkContext

    assert has_class(SparkContext.getOrCreate(), name), f"Iceberg has no {name} any more: mend iceberg/spark/java.py"
