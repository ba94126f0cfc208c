"""Types that are narrower in Iceberg than in Spark: `uuid` is a string in Spark, `fixed[L]` is binary.

A value that does not fit them would fail the whole write, so the rows are checked first.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.iceberg.metadata.identifier import quoted
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.ingest.sources.blocks import LINE, RAW, RAW_CHARS_MAX, REJECT

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\\z"


def fit_values(df: DataFrame, view: TableView) -> DataFrame:
    """Adds a reason to rows with a value that its column cannot hold. In nested columns the write refuses the batch."""
    reason: Column = F.col(REJECT)
    checked = False
    for field in view.schema["fields"]:
        name, kind = field["name"], field["type"]
        if not isinstance(kind, str) or name not in df.columns:
            continue
        value = F.col(quoted(name))
        if kind == "uuid":
            text = F.concat(F.lit(f'column "{name}": "'), value, F.lit('" is not a uuid'))
            reason = F.coalesce(reason, F.when(~value.rlike(_UUID), text))
        elif kind.startswith("fixed["):
            length = int(kind.removeprefix("fixed[").removesuffix("]"))
            text = F.concat(F.lit(f'column "{name}": '), F.length(value), F.lit(f" bytes, expected {length}"))
            reason = F.coalesce(reason, F.when(F.length(value) != length, text))
        else:
            continue
        checked = True
    if not checked:
        return df
    data = [F.col(quoted(c)) for c in df.columns if c not in (LINE, REJECT, RAW)]
    raw = F.coalesce(F.col(RAW), F.when(reason.isNotNull(), F.left(F.to_json(F.struct(*data)), F.lit(RAW_CHARS_MAX))))
    return df.withColumns({RAW: raw, REJECT: reason})
