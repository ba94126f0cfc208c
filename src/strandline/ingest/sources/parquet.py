"""Parquet: Spark reads it, and expressions fit its values to the dataset.

Columns are matched by name. If the dataset's type can hold all values of the file's type, the column is widened. If the
types overlap, each value is checked (a long in an int column, a wider decimal, a double in a float column, whole
numbers in a double column), and a row with a value that is not exact is rejected. For other types, the file is refused:
it has a different column under the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from strandline.core.errors import InputError
from strandline.core.types import INTERNAL_COLUMNS
from strandline.iceberg.metadata.identifier import quoted
from strandline.iceberg.spark.row_text import line
from strandline.ingest.sources.blocks import LINE, RAW, RAW_CHARS_MAX, REJECT, result_schema
from strandline.ingest.sources.identify import SourceFile
from strandline.ingest.sources.values import named

_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_FLOATS = (t.FloatType, t.DoubleType)
_GLOB = re.compile(r"([\\*?\[\]{}])")

Reasons = list[Column]  # each is null for a row that passes its check


class _Mismatch(Exception):
    """The file's schema, not one of its rows, does not fit."""


def read_parquet(spark: SparkSession, source: SourceFile, fields: t.StructType) -> DataFrame:
    raw = _open(spark, source)
    if own := [name for name in raw.columns if name in INTERNAL_COLUMNS]:
        raise InputError(f'{source.path}: the column "{own[0]}" is Strandline\'s own', hint="Leave it out of the file.")
    try:
        columns, reasons = _fit_fields(raw.schema, fields, "", lambda name: F.col(quoted(name)), None)
    except _Mismatch as e:
        raise InputError(f"{source.path} does not fit the dataset: {e}") from e
    reject = F.coalesce(*reasons) if reasons else F.lit(None).cast("string")
    text = F.left(line("jsonl", raw.schema.fields), F.lit(RAW_CHARS_MAX))
    fitted = raw.select(
        *[column.alias(f.name) for column, f in zip(columns, fields, strict=True)],
        (raw.metadataColumn("_metadata").getField("row_index") + 1).alias(LINE),
        reject.alias(REJECT),
        F.when(reject.isNotNull(), text).alias(RAW),
    )
    nulled = [F.when(F.col(REJECT).isNull(), F.col(quoted(f.name))).alias(f.name) for f in fields]
    result = fitted.select(*nulled, LINE, REJECT, RAW)
    return _with_nullability(result, result_schema(fields))


def column_names(source: SourceFile) -> tuple[str, ...]:
    return tuple(pq.read_schema(source.path).names)


def _open(spark: SparkSession, source: SourceFile) -> DataFrame:
    if source.size_bytes == 0:
        raise InputError(f"{source.path} is empty, so it is not a Parquet file")
    try:
        pq.read_metadata(source.path)
    except (pa.ArrowException, OSError) as e:
        raise InputError(f"{source.path} is not a complete Parquet file: its footer cannot be read") from e
    try:
        location = "file:" + _GLOB.sub(r"\\\1", str(source.location))
        return spark.read.option("recursiveFileLookup", "true").parquet(location)
    except PySparkException as e:
        condition = e.getCondition() or ""
        detail = "it has a type that Spark cannot read" if "TYPE" in condition else "Spark cannot read it"
        raise InputError(
            f"{source.path}: {detail} ({condition or 'Spark gives no reason'})",
            hint="Times must not be in nanoseconds, and column names must not differ only in case.",
        ) from e


def _with_nullability(df: DataFrame, wanted: t.StructType) -> DataFrame:
    """The frame with the wanted nullability. Required fields inside structs and lists were checked, but Spark's
    optimizer cannot see that."""
    if all(have.dataType == want.dataType for have, want in zip(df.schema, wanted, strict=True)):
        return df
    return df.mapInArrow(lambda batches: batches, wanted)


def _fit_fields(
    have: t.StructType, want: t.StructType, prefix: str, get: Callable[[str], Column], parent: Column | None
) -> tuple[list[Column], Reasons]:
    given = {f.name: f.dataType for f in have}
    if unknown := [name for name in given if name not in want.fieldNames()]:
        raise _Mismatch("there is no column " + ", ".join(f'"{prefix}{name}"' for name in unknown))
    columns: list[Column] = []
    reasons: Reasons = []
    for field in want:
        path = prefix + field.name
        if field.name in given:
            column = get(field.name)
            if not field.nullable:
                absent = column.isNull() if parent is None else parent.isNotNull() & column.isNull()
                reasons.append(_when(absent, f'column "{path}" is null and required'))
            fitted, more = _fit(column, given[field.name], field.dataType, path)
            columns.append(fitted)
            reasons += more
        elif field.nullable:
            columns.append(F.lit(None).cast(field.dataType))
        else:
            raise _Mismatch(f'the required column "{path}" is not in the file')
    return columns, reasons


def _fit(column: Column, have: t.DataType, want: t.DataType, path: str) -> tuple[Column, Reasons]:
    match have, want:
        case t.StructType(), t.StructType():
            children, reasons = _fit_fields(have, want, path + ".", column.getField, column)
            named_children = [child.alias(f.name) for child, f in zip(children, want, strict=True)]
            return F.when(column.isNotNull(), F.struct(*named_children)), reasons
        case t.ArrayType(), t.ArrayType():
            return _fit_list(column, have, want, path + "[]")
        case t.MapType(), t.MapType():
            return _fit_map(column, have, want, path)
        case t.StringType(), t.StringType():
            return column, [_when(~F.is_valid_utf8(column), f'column "{path}": invalid UTF-8')]
        case t.TimestampNTZType(), t.TimestampType():
            return column.cast(want), []  # in UTC, which is the session's zone
        case _ if have == want:
            return column, []
        case _ if _overlap(have, want):
            return _fit_number(column, have, want, path)
    raise _Mismatch(f'column "{path}" is {named(have)}, and not {named(want)}')


_HIGHEST: dict[type[t.DataType], int] = {t.IntegerType: 2**31 - 1, t.LongType: 2**63 - 1}


def _fit_number(column: Column, have: t.DataType, want: t.DataType, path: str) -> tuple[Column, Reasons]:
    fitted = column.try_cast(want)
    if _holds_all(have, want):
        return fitted, []
    exact = fitted.isNotNull() & (fitted.try_cast(have).eqNullSafe(column))
    if isinstance(want, (t.FloatType, t.DoubleType)) and type(have) in _HIGHEST:
        exact &= column != _HIGHEST[type(have)]  # a float rounds it up, and the cast back is capped at this value
    message = F.concat(F.lit(f'column "{path}": '), column.cast("string"), F.lit(f" does not fit {named(want)}"))
    return fitted, [F.when(column.isNotNull() & ~exact, message)]


def _holds_all(have: t.DataType, want: t.DataType) -> bool:
    match have, want:
        case t.DecimalType(), t.DecimalType():
            return want.scale >= have.scale and want.precision - want.scale >= have.precision - have.scale
        case t.FloatType(), t.DoubleType():
            return True
        case _ if isinstance(have, _INTEGERS) and isinstance(want, _INTEGERS):
            return _INTEGERS.index(type(have)) <= _INTEGERS.index(type(want))
    return isinstance(have, (t.ByteType, t.ShortType, t.IntegerType)) and isinstance(want, t.DoubleType)


def _fit_list(column: Column, have: t.ArrayType, want: t.ArrayType, path: str) -> tuple[Column, Reasons]:
    kinds = (have.elementType, want.elementType)
    fitted = F.transform(column, lambda e: _fit(e, *kinds, path)[0])
    return fitted, [_first_reason(column, *kinds, want.containsNull, path)]


def _fit_map(column: Column, have: t.MapType, want: t.MapType, path: str) -> tuple[Column, Reasons]:
    if have.keyType != want.keyType:
        raise _Mismatch(f'the keys of column "{path}" are {named(have.keyType)}, and not {named(want.keyType)}')
    kinds = (have.valueType, want.valueType)
    fitted = F.transform_values(column, lambda _, v: _fit(v, *kinds, path + "{}")[0])
    return fitted, [
        _first_reason(F.map_keys(column), have.keyType, want.keyType, True, path + "{key}"),
        _first_reason(F.map_values(column), *kinds, want.valueContainsNull, path + "{}"),
    ]


def _first_reason(elements: Column, have: t.DataType, want: t.DataType, nullable: bool, path: str) -> Column:
    """Why the first element that does not fit does not; null if all elements fit."""

    def reason(element: Column) -> Column:
        reasons = _fit(element, have, want, path)[1]
        if not nullable:
            reasons = [_when(element.isNull(), f'column "{path}" is null and required'), *reasons]
        return F.coalesce(*reasons) if reasons else F.lit(None).cast("string")

    return F.get(F.filter(F.transform(elements, reason), lambda r: r.isNotNull()), F.lit(0))


def _when(holds: Column, reason: str) -> Column:
    return F.when(holds, F.lit(reason))


def _overlap(have: t.DataType, want: t.DataType) -> bool:
    if isinstance(have, _INTEGERS):
        return isinstance(want, (*_INTEGERS, *_FLOATS, t.DecimalType))
    return any(isinstance(have, kind) and isinstance(want, kind) for kind in (_FLOATS, t.DecimalType))
