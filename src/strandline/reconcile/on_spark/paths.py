"""File names as bytes, which Spark can hold: a name need not be valid text. Bytes keep the order of names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


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
