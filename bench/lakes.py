"""Lakes to measure on, and what is needed to take a table away again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.lake import Lake
from strandline.lake_admin import init_lake

if TYPE_CHECKING:
    from strandline.core.types import Dataset


def new_lake(home: Path, *, ledger: str = "ledger.db") -> Lake:
    return init_lake(home, ledger=ledger)


def create(lake: Lake, name: str, columns: list[dict[str, Any]]) -> Dataset:
    from strandline.iceberg.schema.schema_file import parse_columns

    return lake.create_dataset(name, parse_columns(columns))


def plain_table(lake: Lake, name: str, like: Dataset, *, numbered: bool = False) -> str:
    """An Iceberg table with the dataset's columns and write settings, and nothing of ours; `numbered`: except for the
    columns."""
    from strandline.core.types import INTERNAL_COLUMNS

    source = lake.catalog.load(like.name)
    kept = {
        key: value
        for key, value in source.properties.items()
        if not key.startswith("strandline.") and (numbered or not key.endswith(tuple(INTERNAL_COLUMNS)))
    }
    frame = lake.spark.table(f"lake.{like.name}")
    if not numbered:
        frame = frame.drop(*INTERNAL_COLUMNS)
    lake.spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.plain")
    writer = frame.limit(0).writeTo(f"lake.plain.{name}").using("iceberg")
    for key, value in kept.items():
        writer = writer.tableProperty(key, value)
    writer.create()
    return f"lake.plain.{name}"


def remove(lake: Lake, *names: str) -> None:
    """Table and files, so that every sample begins with the same disk."""
    for name in names:
        location = lake.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(  # type: ignore[union-attr]
            lake.spark._jsparkSession, name
        ).location()
        if name.startswith("lake.plain."):
            lake.spark.sql(f"DROP TABLE {name}")
        else:
            lake.drop_dataset(name.removeprefix("lake."))
        shutil.rmtree(location.removeprefix("file://").removeprefix("file:"), ignore_errors=True)
