"""Distinguishes errors of Spark and of Iceberg's Java library by their class, and explains them in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from strandline.core.errors import FailedError, StorageError, StrandlineError
from strandline.iceberg.spark import java

JAVA_ERRORS = (Py4JJavaError, PySparkException)


def is_missing_table(error: Exception) -> bool:
    if isinstance(error, PySparkException):
        return error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
    return java_class(error) in java.NO_SUCH_TABLE


def java_class(error: Exception) -> str:
    """The Java class of an error. PySpark translates some Java errors: of those, the name of PySpark's class."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getClass().getName())
    return type(error).__name__


def root_cause(error: Exception) -> str:
    if not isinstance(error, Py4JJavaError):
        return str(error)
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"


@contextmanager
def explaining(what: str, errors: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Translates errors with `explain`."""
    try:
        yield
    except errors as e:
        raise explain(e, what) from e


def explain(error: Exception, what: str) -> StrandlineError:
    """One of our errors, with the root cause of a Java error in one line."""
    if isinstance(error, StrandlineError):
        return error
    text = root_cause(error)
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    # If Python failed on an executor, the exception is below its traceback.
    python = [line for line in lines if not line[0].isspace()] if "Traceback (most recent call last)" in text else []
    first = (python[-1] if python else lines[0]).strip()
    if "No space left" in text:
        return StorageError(
            f"{what}: the disk is full", hint="Free some space and run it again; nothing is visible yet."
        )
    kind = java_class(error)
    if kind in java.REST_DENIED:
        return StorageError(
            f"{what}: the catalog refuses access: {first[:500]}",
            hint="Check the credentials in catalog.options, and what the catalog allows them to do.",
        )
    if kind in java.REST_UNREACHABLE:
        return StorageError(
            f"{what}: the catalog does not answer: {first[:500]}",
            hint="Check that the REST catalog at catalog.uri is up and can be reached from here. The next run settles "
            "the blocks that are open.",
        )
    return FailedError(f"{what}: {first[:500]}")
