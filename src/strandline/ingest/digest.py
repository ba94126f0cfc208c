"""The digest of a batch's original rows. It does not depend on their order, and is computed by Spark expressions only.

It is taken while the rows are written (docs/adr/0082), or in a pass of its own if the batch may be a repeat.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core.types import INTERNAL_COLUMNS
from strandline.iceberg.metadata.identifier import quoted

_OBSERVED_SECONDS_MAX = 60.0  # Spark reports observed values soon after the job, or never if the event was lost


class ObservedDigest:
    """Takes the digest of a frame's rows while one job writes them. Spark adds up the values of the task attempts that
    it accepted: each partition once, however often its task ran. That holds for the last stage of a job only, so no
    shuffle may follow. Ignores internal columns."""

    def __init__(self, rows: DataFrame) -> None:
        self._observation = Observation()
        fields = [f for f in rows.schema.fields if f.name not in INTERNAL_COLUMNS]
        self.frame = rows.observe(self._observation, F.count(F.lit(1)).alias("rows"), *digest_measures(fields))

    def read(self) -> str | None:
        """The digest. Call this after the job. None if Spark does not report the values."""
        observed: list[Mapping[str, Any]] = []
        waiting = threading.Thread(target=lambda: observed.append(self._observation.get), daemon=True)
        waiting.start()
        waiting.join(_OBSERVED_SECONDS_MAX)
        return sums_text(observed, observed[0]["rows"]) if observed else None


HALVES = ("low1", "high1", "low2", "high2")


def digest_measures(fields: Sequence[T.StructField], fits: Column | None = None) -> list[Column]:
    """Four sums, named as in `HALVES`, that do not depend on the order of rows. `fits` tells which rows count; None:
    all."""
    values = [part for f in sorted(fields, key=lambda f: f.name) for part in _named_value(f)]
    measures = []
    for seed in (1, 2):
        hashed = F.xxhash64(F.lit(seed), *values)
        row = hashed if fits is None else F.when(fits, hashed)
        # Sums of halves: the order of rows does not matter, equal rows do not cancel out, and no sum overflows.
        measures.append(F.sum(row.bitwiseAND(F.lit(0xFFFFFFFF))).alias(f"low{seed}"))
        measures.append(F.sum(F.shiftrightunsigned(row, 32)).alias(f"high{seed}"))
    return measures


def _named_value(field: T.StructField) -> list[Column]:
    """The values to hash for a column. Nulls are left out, so that a column that was added to the dataset later does
    not change the digest. Each value is hashed with its column's name: a 1 in one column differs from a 1 in
    another."""
    value = F.col(quoted(field.name))
    if isinstance(field.dataType, T.StructType | T.ArrayType | T.MapType | T.VariantType):
        return [F.when(value.isNotNull(), F.struct(F.lit(field.name), hashable(value, field.dataType)))]
    # Gives the same hash as the struct, whose fields are hashed one by one. Building structs takes longer than hashing.
    is_null = value.isNull()
    nothing = F.lit(None)
    return [
        F.when(is_null, nothing).otherwise(F.lit(field.name)),
        F.when(is_null, nothing).otherwise(F.lit(False)),
        _plain(value, field.dataType),
    ]


def digest_text(halves: Sequence[int], rows: int) -> str:
    """The digest as the ledger stores it."""
    return "".join(f"{h % 2**64:016x}" for h in halves) + f"-{rows}"


def hashable(value: Column, kind: T.DataType) -> Column:
    """The value in a form that can be hashed. Hash functions skip nulls, do not see where a list ends, and refuse maps.
    So nulls and the lengths of lists are explicit, and maps are sorted by key."""
    size: list[Column] = []
    match kind:
        case T.StructType():
            inner: Any = (
                F.struct(
                    *(hashable(value.getField(f.name), f.dataType).alias(f"f{i}") for i, f in enumerate(kind.fields))
                )
                if kind.fields
                else F.lit(0)
            )
        case T.ArrayType():
            inner = F.transform(value, lambda x: hashable(x, kind.elementType))
            size.append(F.size(value).alias("s"))
        case T.MapType():
            entries = T.StructType([T.StructField("key", kind.keyType), T.StructField("value", kind.valueType)])
            inner = F.array_sort(F.transform(F.map_entries(value), lambda x: hashable(x, entries)))
            size.append(F.size(value).alias("s"))
        case T.VariantType():
            inner = F.to_json(value)
        case _:
            inner = _plain(value, kind)
    return F.struct(value.isNull().alias("n"), *size, inner.alias("v"))


def _plain(value: Column, kind: T.DataType) -> Column:
    """A value of a type that is not nested."""
    match kind:
        case T.IntegerType() | T.ShortType() | T.ByteType():
            return value.cast("long")  # the same after the column was widened
        case T.FloatType():
            return value.cast("double")
        case T.DecimalType():
            return value.cast("string")
        case _:
            return value


def sums_text(parts: Sequence[Mapping[str, Any]], rows: int) -> str:
    """The digest from the measures of all parts of the batch."""
    return digest_text([sum(part[name] or 0 for part in parts) for name in HALVES], rows)
