"""The DataFrame of a settled view: our rows between two sequence numbers, read at one snapshot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from strandline.core.read_token import ReadBounds
from strandline.core.types import SEQ_COLUMN, Dataset, SeqRange, SnapshotId
from strandline.iceberg.metadata.identifier import in_spark
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.number_ranges import NumberRanges
from strandline.iceberg.spark.tables import SparkTables


def settled_rows(
    tables: SparkTables, dataset: Dataset, view: TableView, bounds: ReadBounds, owned: Sequence[SeqRange] | None
) -> DataFrame:
    """All columns, internal ones too, of our rows between the bounds."""
    if view.main is None or bounds.empty:
        return tables.spark.table(in_spark(dataset.name)).where(F.lit(False))
    df = _between(tables, dataset, view, view.main, bounds)
    return df if owned is None else df.where(is_owned(owned, F.col(SEQ_COLUMN)))


def _between(tables: SparkTables, dataset: Dataset, view: TableView, main: SnapshotId, bounds: ReadBounds) -> DataFrame:
    if view.main_has_current_schema:
        df = tables.read(dataset.name, main)
    else:  # time travel would use the snapshot's own schema, which is older than the current one
        df = tables.spark.table(in_spark(dataset.name))
    if bounds.after is not None:
        df = df.where(F.col(SEQ_COLUMN) > bounds.after)
    return df if bounds.until is None else df.where(F.col(SEQ_COLUMN) <= bounds.until)


def is_owned(owned: Sequence[SeqRange], number: Column) -> Column:
    """Whether the sequence number lies in one of the ranges. There may be 100,000, too many for a predicate."""
    ranges = NumberRanges(owned)

    @pandas_udf("boolean")  # type: ignore[call-overload, untyped-decorator]
    def contained(numbers: pd.Series) -> pd.Series:
        return pd.Series(ranges.contain(numbers.to_numpy(dtype=np.int64)))

    return contained(number)  # type: ignore[no-any-return]
