"""Turns a failure inside a Spark task into an error that names the file.

Spark gives the driver only the text of what a Python worker raised, wrapped more than once; so the text carries a
marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from strandline.core.errors import InputError, StrandlineError
from strandline.iceberg.session.spark_internals import java_cause, java_origin
from strandline.ingest.sources.identify import SourceFile

_MARKER = re.compile(r"strandline-input-failure (\{.*?\}) \.")

_UNREADABLE = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE",
    "ParquetDecodingException",
    "is not a Parquet file",
    "Could not read footer",
    "CANNOT_MERGE_SCHEMAS",
    "FileNotFoundException",
)


class TaskFailure(Exception):
    """Raised in tasks: the whole file is at fault, not one row of it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"strandline-input-failure {json.dumps({'path': path, 'message': message})} .")


def translate(error: Exception, source: SourceFile) -> StrandlineError | None:
    """The error for a failed Spark action that the file has caused; None for another cause."""
    for text in _texts(error):
        if marked := _MARKER.search(text):
            return InputError(json.loads(marked[1])["message"])
        if any(sign in text for sign in _UNREADABLE):
            return InputError(f"{source.path} cannot be read as {source.format}: it is damaged, or changed meanwhile")
    return None


def _texts(error: BaseException) -> Iterator[str]:
    """The texts of the error and of all its causes, in Python and in the JVM."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield str(current)
        origin = java_origin(current)
        while origin is not None:
            yield str(origin.toString())
            origin = origin.getCause()
        waiting += [current.__cause__, current.__context__, java_cause(current)]
