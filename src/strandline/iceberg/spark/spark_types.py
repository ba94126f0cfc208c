"""The types that Spark has for a table's columns."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import types as T

from strandline.core.errors import TableUnfit
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct

_PLAIN: dict[str, T.DataType] = {
    "boolean": T.BooleanType(), "int": T.IntegerType(), "long": T.LongType(), "float": T.FloatType(),
    "double": T.DoubleType(), "date": T.DateType(), "string": T.StringType(), "uuid": T.StringType(),
    "binary": T.BinaryType(), "timestamp": T.TimestampNTZType(), "timestamptz": T.TimestampType(),
}  # fmt: skip


def spark_schema(columns: Iterable[Column]) -> T.StructType:
    """Raises TableUnfit for a type that Spark cannot read."""
    return T.StructType([_spark_field(c) for c in columns])


def _spark_field(column: Column) -> T.StructField:
    comment = {} if column.doc is None else {"comment": column.doc}
    return T.StructField(column.name, spark_type(column.type, column.name), not column.required, comment)


def spark_type(kind: ColumnType, name: str) -> T.DataType:
    """`name` names the column in the error. Raises TableUnfit for a type that Spark cannot read."""
    match kind:
        case Primitive(text) if text.startswith("decimal("):
            precision, scale = text.removeprefix("decimal(").removesuffix(")").split(",")
            return T.DecimalType(int(precision), int(scale))
        case Primitive(text) if text.startswith("fixed["):
            return T.BinaryType()
        case Primitive(text):
            if text not in _PLAIN:
                raise TableUnfit(f"column {name} is of type {text}, which Spark cannot read")
            return _PLAIN[text]
        case ListOf(element, required):
            return T.ArrayType(spark_type(element, name), not required)
        case MapOf(key, value, required):
            return T.MapType(spark_type(key, name), spark_type(value, name), not required)
        case Struct(fields):
            return spark_schema(fields)
