"""Turns a failure inside a Spark task into an error that names the file.

Spark passes only the text of a Python worker's exception to the driver, wrapped more than once. So the text contains a
marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from strandline.core.errors import InputError, StrandlineError
from strandline.iceberg.session.spark_internals import java_cause, java_origin, spark_condition
from strandline.ingest.sources.identify import SourceFile

_MARKER = re.compile(r"strandline-input-failure (\{.*?\}) \.")

# Spark's error conditions, up to the dot, and classes of errors that Spark does not wrap.
_UNREADABLE = frozenset({"FAILED_READ_FILE", "CANNOT_MERGE_SCHEMAS"})
_UNREADABLE_CLASSES = frozenset({"org.apache.parquet.io.ParquetDecodingException", "java.io.FileNotFoundException"})


class TaskFailure(Exception):
    """Raised in tasks if the whole file cannot be read, not just one row."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"strandline-input-failure {json.dumps({'path': path, 'message': message})} .")


def translate(error: Exception, source: SourceFile) -> StrandlineError | None:
    """The error for a Spark action that failed because of the file. None if it failed for another reason."""
    for cause, is_java in _causes(error):
        if marked := _MARKER.search(str(cause.toString() if is_java else cause)):
            return InputError(json.loads(marked[1])["message"])
        if is_java and _is_unreadable(cause):
            return InputError(f"{source.path} cannot be read as {source.format}: it is damaged, or changed meanwhile")
    return None


def _is_unreadable(java_error: Any) -> bool:
    condition = spark_condition(java_error) or ""
    return condition.partition(".")[0] in _UNREADABLE or java_error.getClass().getName() in _UNREADABLE_CLASSES


def _causes(error: BaseException) -> Iterator[tuple[Any, bool]]:
    """The error and all its causes, and whether each is an exception of the JVM."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current, False
        origin = java_origin(current)
        while origin is not None:
            yield origin, True
            origin = origin.getCause()
        waiting += [current.__cause__, current.__context__, java_cause(current)]
