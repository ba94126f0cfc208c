"""About how many bytes a row is, before it is built."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.iceberg.metadata.identifier import quoted


def weight(fields: Sequence[T.StructField]) -> Column:
    """The approximate size of a row in bytes: exact for columns of varying size, the width of the type for others."""
    total = F.lit(sum(width(f.dataType) for f in fields)).cast("long")
    for f in fields:
        value = F.col(quoted(f.name))
        match f.dataType:
            case T.StringType() | T.BinaryType():
                total = total + F.coalesce(F.octet_length(value), F.lit(0))
            case T.StructType() | T.ArrayType() | T.MapType() | T.VariantType():
                total = total + F.coalesce(F.octet_length(F.to_json(value)), F.lit(0))
            case _:
                pass
    return total


def width(kind: T.DataType) -> int:
    match kind:
        case T.BooleanType() | T.ByteType():
            return 1
        case T.IntegerType() | T.FloatType() | T.DateType() | T.ShortType():
            return 4
        case T.DecimalType():
            return 16
        case T.StringType() | T.BinaryType():
            return 4
    return 8
