"""The only module that uses private interfaces of Spark and Py4J.

`tests/unit/test_internals.py` and `tests/spark/test_internals.py` fail with a plain sentence if an upgrade removes one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from py4j.java_gateway import JavaClass, JavaPackage
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


_EXECUTION = "org.apache.spark.sql.execution"
NARROW = frozenset(
    {f"{_EXECUTION}.datasources.v2.BatchScanExec"}.union(
        f"{_EXECUTION}.{name}"
        for name in (
            "ColumnarToRowExec", "FileSourceScanExec", "FilterExec", "InputAdapter", "LocalTableScanExec",
            "ProjectExec", "RangeExec", "WholeStageCodegenExec",
        )
    )
)  # fmt: skip
PUSHED_THROUGH_UNIONS = "org.apache.spark.sql.catalyst.optimizer.PushDownLeftSemiAntiJoin"  # a rule of the optimizer


def jvm_of(spark: SparkSession | SparkContext) -> Any:
    return spark._jvm


def context_of(spark: SparkSession) -> SparkContext | None:
    """None for a session of Spark Connect."""
    return getattr(spark, "_sc", None)


def java_session(spark: SparkSession) -> Any:
    return spark._jsparkSession


def set_active(spark: SparkSession) -> None:
    """Makes the session the active one of this thread. Iceberg finds its staged files through the active session. A new
    thread has none, and would find no files."""
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


def print_no_query_errors() -> None:
    """Stops PySpark from printing failed queries, with values of their rows, to standard error. PySpark also raises the
    error, and the code that handles it decides what is shown."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def status_tracker(context: SparkContext) -> Any:
    """Spark's own status tracker. Unlike PySpark's, it finds the jobs of a tag."""
    return context._jsc.sc().statusTracker()


def is_connect(df: DataFrame) -> bool:
    """Whether the frame is of Spark Connect, which has no JVM in this process."""
    return not hasattr(df, "_jdf")


def query_execution(df: DataFrame) -> Any:
    return df._jdf.queryExecution()


def is_of_session(df: DataFrame, spark: SparkSession) -> bool:
    return bool(java_session(df.sparkSession).equals(java_session(spark)))


def is_narrow(plan: Any) -> bool:
    """Whether a physical plan moves no row to another partition."""
    children = plan.children()
    return plan.getClass().getName() in NARROW and all(is_narrow(children.apply(i)) for i in range(children.size()))


def frame_over(spark: SparkSession, rdd: Any, like: DataFrame) -> DataFrame:
    """A frame over an RDD of Spark's internal rows, with the schema of another frame."""
    from pyspark.sql import DataFrame

    return DataFrame(java_session(spark).internalCreateDataFrame(rdd, like._jdf.schema(), False), spark)


def frame_in(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """The frame in another session. It still reads the tables of its own session, and writes go to the catalog of the
    other one. Spark plans both as one query, so no row is copied in between."""
    from pyspark.sql import DataFrame

    dataset = jvm_of(spark).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(java_session(spark), query_execution(frame).analyzed()), spark)


def catalyst_of(spark: SparkSession) -> Any:
    return jvm_of(spark).org.apache.spark.sql.catalyst


def parsed_expression(spark: SparkSession, text: str) -> Any:
    """The Catalyst expression of a SQL text, before Spark resolves its names."""
    return java_session(spark).sessionState().sqlParser().parseExpression(text)


def java_origin(error: BaseException) -> Any:
    """The Java exception behind an error of PySpark or Py4J; None if there is none."""
    return getattr(error, "_origin", None) or getattr(error, "java_exception", None)


def spark_condition(java_error: Any) -> str | None:
    """Spark's error condition of a Java exception, such as `FAILED_READ_FILE.NO_HINT`. None if it has none, or is not
    one of Spark's exceptions."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    if not is_instance_of(SparkContext._gateway, java_error, "org.apache.spark.SparkThrowable"):
        return None
    name = java_error.getCondition()
    return None if name is None else str(name)


def java_cause(error: BaseException) -> BaseException | None:
    """The cause of an error, as PySpark records it."""
    return getattr(error, "_cause", None)


def name_packages(jvm: Any, packages: Sequence[str], classes: Sequence[str]) -> None:
    """Declares packages and classes to Py4J, and makes it cache the classes of these packages and their static methods.
    Otherwise, each time that Python names a class, the JVM searches all its jars and all imported packages for `org`,
    then for `org.apache`, and so on: a fifth of its work if jobs are small. `classes` are those that PySpark names with
    their whole name, or without a package."""
    java_package, java_class = _caching_types()
    for name in packages:
        parent, path = jvm, ""
        for part in name.split("."):
            path = f"{path}.{part}" if path else part
            parent = parent.__dict__.setdefault(part, java_package(path, jvm._gateway_client, jvm._id))
    for name in classes:
        jvm.__dict__[name] = jvm.__dict__[name.rpartition(".")[2]] = java_class(name, jvm._gateway_client)


@cache
def _caching_types() -> tuple[type[JavaPackage], type[JavaClass]]:
    """Subclasses of Py4J's packages and classes that ask the JVM only once for each name."""
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage

    class CachingClass(JavaClass):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            member = super().__getattr__(name)
            if isinstance(member, JavaMember):
                self.__dict__[name] = member
            return member

    class CachingPackage(JavaPackage):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            member = super().__getattr__(name)
            if isinstance(member, JavaClass):
                member = self.__dict__[name] = CachingClass(member._fqn, self._gateway_client)
            return member

    return CachingPackage, CachingClass


def running_context() -> SparkContext | None:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def running_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession._instantiatedSession


def forget_sessions() -> None:
    """Makes PySpark forget its sessions. Otherwise it would return those of a stopped context."""
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def gateway() -> Any:
    from pyspark import SparkContext

    return SparkContext._gateway


def forget_gateway() -> None:
    """Makes PySpark forget its JVM, so that the next context starts a new one."""
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
    """Replaces the environment that pyspark reads and passes to the JVM. Does not change the environment of the
    process: other threads read it, and start programs with it."""
    from pyspark import find_spark_home, java_gateway

    replaced = _Os(changes)
    for module in (find_spark_home, java_gateway):
        vars(module)["os"] = replaced
    try:
        yield
    finally:
        for module in (find_spark_home, java_gateway):
            vars(module)["os"] = os
