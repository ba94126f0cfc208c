"""Renders rows as lines of text with Spark expressions: JSON lines, CSV, and PostgreSQL's COPY format. `read` and sinks
use it.

The expressions run in the JVM, in generated code. The same row always gives the same text: nothing depends on the
machine's time zone or language.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core.delivery_types import NOT_PARTITIONED
from strandline.core.types import PARTITION_COLUMN
from strandline.iceberg.metadata.identifier import quoted

_JSON = {"ignoreNullFields": "false"}
_AFTER_YEAR = "-MM-dd HH:mm:ss.SSSSSS"
_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"


def line(form: str, fields: Sequence[T.StructField]) -> Column:
    """The text of a row in this form: `jsonl`, `csv` or `copy`."""
    match form:
        case "jsonl":
            return F.to_json(F.struct(*(_json_value(f).alias(f.name) for f in fields)), _JSON)
        case "csv":
            texts = [F.coalesce(_csv_text(f), F.lit("")) for f in fields]
            if len(texts) == 1:  # most readers skip an empty line
                return F.when(texts[0] == "", F.lit('""')).otherwise(texts[0])
            return F.concat_ws(",", *texts)
        case "copy":
            return F.concat_ws("\t", *(F.coalesce(_copy_text(f), F.lit("\\N")) for f in fields))
    raise ValueError(f"no form of lines is called {form!r}")


def _json_value(field: T.StructField) -> Column:
    return _spelled(F.col(quoted(field.name)), field.dataType)


def _spelled(value: Column, kind: T.DataType) -> Column:
    """The value, with text for types that JSON lacks. Decimals are text, too: a reader that parses numbers as doubles
    would lose digits."""
    match kind:
        case T.DecimalType() | T.DateType():
            return value.cast("string")
        case T.TimestampType() | T.TimestampNTZType():
            return _iso(value, kind)
        case T.StructType() if _needs_spelling(kind):
            parts = (_spelled(value.getField(f.name), f.dataType).alias(f.name) for f in kind.fields)
            return F.when(value.isNotNull(), F.struct(*parts))
        case T.ArrayType() if _needs_spelling(kind):
            return F.transform(value, lambda x: _spelled(x, kind.elementType))
        case T.MapType() if _needs_spelling(kind):
            return F.transform_values(
                F.transform_keys(
                    value,
                    lambda k, _: F.base64(k) if isinstance(kind.keyType, T.BinaryType) else _spelled(k, kind.keyType),
                ),
                lambda _, v: _spelled(v, kind.valueType),
            )
    return value


def _needs_spelling(kind: T.DataType) -> bool:
    match kind:
        case T.DecimalType() | T.DateType() | T.TimestampType() | T.TimestampNTZType():
            return True
        case T.StructType():
            return any(_needs_spelling(f.dataType) for f in kind.fields)
        case T.ArrayType():
            return _needs_spelling(kind.elementType)
        case T.MapType():
            inner = (kind.keyType, kind.valueType)
            return isinstance(kind.keyType, T.BinaryType) or any(map(_needs_spelling, inner))
    return False


def _iso(value: Column, kind: T.DataType) -> Column:
    """The time in ISO 8601. Patterns cannot format years before 1 and after 9999. Those are cast, which writes a
    sign."""
    zone = "Z" if isinstance(kind, T.TimestampType) else ""
    first, last = (F.lit(at).cast(kind) for at in ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"))
    cast = F.concat(F.replace(value.cast("string"), F.lit(" "), F.lit("T")), F.lit(zone))
    return F.when(value.between(first, last), F.date_format(value, f"{_ISO}'{zone}'" if zone else _ISO)).otherwise(cast)


def _text(field: T.StructField) -> Column:
    value = F.col(quoted(field.name))
    match field.dataType:
        case T.BinaryType():
            return F.base64(value)
        case T.TimestampType() | T.TimestampNTZType():
            return _iso(value, field.dataType)
        case T.StructType() | T.ArrayType() | T.MapType() | T.VariantType():
            return F.to_json(_json_value(field), _JSON)
        case _:
            return value.cast("string")


def _postgres_text(field: T.StructField) -> Column:
    """The text for PostgreSQL. A year has an era instead of a sign, also if it has five digits."""
    value = F.col(quoted(field.name))
    match field.dataType:
        case T.BinaryType():
            return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
        case T.TimestampType() | T.TimestampNTZType():
            zone = "+00" if isinstance(field.dataType, T.TimestampType) else ""
            return _with_era(value, F.concat(F.date_format(value, _AFTER_YEAR), F.lit(zone)))
        case T.DateType():
            # A pattern would convert the date to a timestamp, which ends at the year 294,247.
            return _with_era(value, F.substring(value.cast("string"), -6, 6))
        case _:
            return _text(field)


def _with_era(value: Column, after_year: Column) -> Column:
    """The year as PostgreSQL writes it, and the rest. The year before 1 is 0 in Spark, as in ISO 8601, and 1 BC in
    PostgreSQL."""
    year = F.year(value)
    digits = F.when(year > 0, year).otherwise(F.lit(1) - year).cast("string")
    # Pads to four digits; `lpad` would truncate longer years.
    padded = F.when(F.length(digits) < 4, F.lpad(digits, 4, "0")).otherwise(digits)
    return F.concat(padded, after_year, F.when(year > 0, F.lit("")).otherwise(F.lit(" BC")))


def _csv_text(field: T.StructField) -> Column:
    """The value as a CSV cell: empty for null, `""` for an empty string."""
    text = _text(field)
    if isinstance(field.dataType, T.StringType | T.StructType | T.ArrayType | T.MapType | T.VariantType):
        doubled = F.concat(F.lit('"'), F.replace(text, F.lit('"'), F.lit('""')), F.lit('"'))
        return F.when((text == "") | text.rlike('[",\\r\\n]') | text.rlike("^\\s|\\s$"), doubled).otherwise(text)
    return text


def _copy_text(field: T.StructField) -> Column:
    text = _postgres_text(field)
    for raw, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = F.replace(text, F.lit(raw), F.lit(escaped))
    return text


def lane_of(df: DataFrame) -> Column:
    """The lane of each row. Rows without a partition (from before adoption) have a lane of their own."""
    if PARTITION_COLUMN not in df.columns:
        return F.lit(NOT_PARTITIONED)
    return F.coalesce(F.col(PARTITION_COLUMN), F.lit(NOT_PARTITIONED))
