"""`paths.key` as a Spark expression, and file names in a form that Spark can hold.

A file name need not be valid text. Spark holds paths and keys as bytes, which keeps the order of names that are not
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.reconcile.paths import keys

if TYPE_CHECKING:
    import pyarrow as pa

# How writers spell the start of a path, and how its key begins. Other spellings need Python.
_SPELLINGS = (("file:///", "/"), ("file:/", "/"), ("s3a://", "s3://"), ("s3n://", "s3://"))


def encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogatepass")


def decoded(path: bytes | bytearray) -> str:
    return path.decode("utf-8", "surrogatepass")


def decoded_column(batch: pa.RecordBatch, name: str) -> list[str]:
    values: list[Any] = batch.column(name).to_pylist()
    return [decoded(value) for value in values]


def encoded_column(values: Sequence[str | None]) -> pa.Array[Any]:
    import pyarrow as pa

    try:
        return pa.array(values, pa.string()).cast(pa.binary())
    except UnicodeEncodeError:
        return pa.array([None if value is None else encoded(value) for value in values], pa.binary())


def spelled(frame: DataFrame) -> DataFrame:
    """Adds a guess at the key of the column `path`, and whether the guess is right. Persist the result before
    `with_keys` reads it twice: otherwise Spark evaluates the expressions each time."""
    guessed = frame.withColumn("guess", _guess(F.col("path")))
    return guessed.withColumn("is_plain", _is_plain(F.col("guess")))


def with_keys(frame: DataFrame, *, all_plain: bool = False) -> DataFrame:
    """Replaces the columns of `spelled` by `key`. Uses Python only for paths with escapes, dots or doubled slashes,
    which an expression cannot handle."""
    plain = frame.where("is_plain").withColumn("key", F.col("guess").cast("binary")).drop("guess", "is_plain")
    if all_plain:
        return plain
    others = frame.where("NOT is_plain").drop("guess", "is_plain")
    return plain.unionByName(others.mapInArrow(_add_keys, ", ".join(_fields(others))))


def _fields(frame: DataFrame) -> Iterator[str]:
    for field in frame.schema.fields:
        yield f"{field.name} {field.dataType.simpleString()}"
    yield "key binary"


def _guess(path: Column) -> Column:
    key = path
    for spelling, begins in reversed(_SPELLINGS):
        rest = F.concat(F.lit(begins), F.substring(path, len(spelling) + 1, 1 << 20))
        key = F.when(path.startswith(spelling), rest).otherwise(key)
    return key


def _is_plain(key: Column) -> Column:
    """Whether only the start of the path has to change."""
    below = F.substring(key, 6, 1 << 20)
    local = key.startswith("/") & ~key.contains("//")
    bucket = key.startswith("s3://") & (F.length(below) > 0) & ~below.startswith("/") & ~below.contains("//")
    return (local | (bucket & ~key.endswith("/"))) & ~key.contains("%") & ~key.contains("/.")


def _add_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        paths: list[str] = list(map(str, batch.column("path").to_pylist()))
        found = [encoded(key) for key in keys(paths)]
        yield batch.append_column("key", pa.array(found, pa.binary()))
