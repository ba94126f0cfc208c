"""`paths.key` as an expression of Spark, and names of files in a form that Spark can hold.

A name need not be text: Spark holds paths and keys as bytes, in which what is no text keeps its place in the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.reconcile.paths import keys

if TYPE_CHECKING:
    import pyarrow as pa

_SPELLINGS = (("file:///", "/"), ("file:/", "/"), ("s3a://", "s3://"), ("s3n://", "s3://"))
"""How writers spell a path, and how its key begins. What is spelled in another way is no matter for an expression."""


def encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogatepass")


def decoded(path: bytes | bytearray) -> str:
    return path.decode("utf-8", "surrogatepass")


def decoded_column(batch: pa.RecordBatch, name: str) -> list[str]:
    values: list[Any] = batch.column(name).to_pylist()
    return [decoded(value) for value in values]


def with_keys(frame: DataFrame) -> DataFrame:
    """A column `key` from the column `path`, a string. By an expression, but for paths that have something in them that
    takes more than one: escapes, dots, doubled slashes. The frame is read twice: it should be kept somewhere."""
    plain, key = _plain(F.col("path")), _key(F.col("path"))
    odd = frame.where(~plain).mapInArrow(_add_keys, ", ".join(_fields(frame)))
    return frame.where(plain).withColumn("key", key.cast("binary")).unionByName(odd)


def _fields(frame: DataFrame) -> Iterator[str]:
    for field in frame.schema.fields:
        yield f"{field.name} {field.dataType.simpleString()}"
    yield "key binary"


def _key(path: Column) -> Column:
    key = path
    for spelled, begins in reversed(_SPELLINGS):
        rest = F.concat(F.lit(begins), F.substring(path, len(spelled) + 1, 1 << 20))
        key = F.when(path.startswith(spelled), rest).otherwise(key)
    return key


def _plain(path: Column) -> Column:
    """Whether nothing but the beginning is to be changed."""
    key = _key(path)
    local = key.rlike(r"\A/(?!/)") & ~key.contains("//")
    bucket = key.rlike(r"\As3://[^/]") & ~F.substring(key, 6, 1 << 20).contains("//") & ~key.endswith("/")
    return (local | bucket) & ~key.contains("%") & ~key.contains("/.")


def _add_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        paths: list[str] = list(map(str, batch.column("path").to_pylist()))
        found = [encoded(key) for key in keys(paths)]
        yield batch.append_column("key", pa.array(found, pa.binary()))
