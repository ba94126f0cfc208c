"""What Spark and Py4J keep to themselves, and we need: the only module that reaches for it.

`tests/unit/test_internals.py` and `tests/spark/test_internals.py` say in a sentence what an upgrade has taken away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

# The JVM behind a session.


def jvm_of(spark: SparkSession | SparkContext) -> Any:
    return spark._jvm


def java_session(spark: SparkSession) -> Any:
    return spark._jsparkSession


def set_active(spark: SparkSession) -> None:
    """This thread works for the session. Iceberg asks for "the active one" to find its catalog of staged files: a
    thread that did nothing before has none, and finds nothing."""
    jvm_of(spark).org.apache.spark.sql.SparkSession.setActiveSession(java_session(spark))


def session_catalog(spark: SparkSession, name: str) -> Any:
    return java_session(spark).sessionState().catalogManager().catalog(name)


def has_class(context: SparkContext, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    if (jvm := jvm_of(context)) is None:
        return False
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def status_tracker(context: SparkContext) -> Any:
    """Spark's own, which knows the jobs of a tag."""
    return context._jsc.sc().statusTracker()


# Plans of frames.


def is_connect(df: DataFrame) -> bool:
    """A frame of Spark Connect, which has no JVM here."""
    return not hasattr(df, "_jdf")


def query_execution(df: DataFrame) -> Any:
    return df._jdf.queryExecution()


def is_of_session(df: DataFrame, spark: SparkSession) -> bool:
    return bool(java_session(df.sparkSession).equals(java_session(spark)))


def frame_over(spark: SparkSession, rdd: Any, like: DataFrame) -> DataFrame:
    """A frame of the rows that an RDD of Spark's internal rows computes, with the schema of another."""
    return frame_of(spark, java_session(spark).internalCreateDataFrame(rdd, like._jdf.schema(), False))


def frame_of(spark: SparkSession, java_frame: Any) -> DataFrame:
    from pyspark.sql import DataFrame

    return DataFrame(java_frame, spark)


def catalyst_of(spark: SparkSession) -> Any:
    return jvm_of(spark).org.apache.spark.sql.catalyst


# Errors.


def java_origin(error: BaseException) -> Any:
    """The Java exception that an error of PySpark or Py4J stands for; None where there is none."""
    return getattr(error, "_origin", None) or getattr(error, "java_exception", None)


def java_cause(error: BaseException) -> BaseException | None:
    """What PySpark says the error was caused by."""
    return getattr(error, "_cause", None)


# The one JVM of the process.


def name_packages(jvm: Any, packages: Sequence[str]) -> None:
    """Asked for `org`, then `org.apache`, and so on, the JVM looks each time through all its jars for a class of that
    name, and in every imported package too: a fifth of its work where jobs are small. So it is told, not asked."""
    from py4j.java_gateway import JavaPackage

    for name in packages:
        above, path = jvm, ""
        for part in name.split("."):
            path = f"{path}.{part}" if path else part
            above = above.__dict__.setdefault(part, JavaPackage(path, jvm._gateway_client, jvm._id))


def running_context() -> SparkContext | None:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def running_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession._instantiatedSession


def forget_sessions() -> None:
    """PySpark would give out sessions of a context that was stopped."""
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def gateway() -> Any:
    from pyspark import SparkContext

    return SparkContext._gateway


def forget_gateway() -> None:
    """The next context starts a JVM of its own."""
    from pyspark import SparkContext

    SparkContext._gateway = None
    SparkContext._jvm = None


class _Os:
    """The module `os`, with another environment."""

    def __init__(self, changes: Mapping[str, str | None]) -> None:
        merged = {**os.environ, **changes}
        self.environ = {name: value for name, value in merged.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@contextmanager
def launch_environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """What pyspark takes for the environment while it starts the JVM, which it hands a copy of it; there is no other
    way to give it one. The environment of the process itself stays as it is: other threads read it, and start programs
    with it."""
    from pyspark import find_spark_home, java_gateway

    seen = _Os(changes)
    for module in (find_spark_home, java_gateway):
        vars(module)["os"] = seen
    try:
        yield
    finally:
        for module in (find_spark_home, java_gateway):
            vars(module)["os"] = os
