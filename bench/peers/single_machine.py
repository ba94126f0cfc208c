"""DuckDB and Polars over files that they are given by name: what one machine can do at best. They pay for no table
format, no catalog and no lease."""

from __future__ import annotations

from typing import Any

import duckdb
import polars

from bench.peers.answering import answer_questions

SEQUENCE = "_ingest_seq"


def duckdb_range(files: list[str], after: int, columns: list[str]) -> int:
    """Rows behind `after`, as an Arrow table."""
    with duckdb.connect() as connection:
        rows: Any = connection.read_parquet(files)
        found = rows.filter(f"{SEQUENCE} > {after}").project(_quoted(columns)).to_arrow_table()
    return int(found.num_rows)


def polars_range(files: list[str], after: int, columns: list[str]) -> int:
    rows = polars.scan_parquet(files).filter(polars.col(SEQUENCE) > after).select(columns)
    return int(rows.collect().to_arrow().num_rows)


def duckdb_copy(files: list[str], columns: list[str], target: str) -> None:
    """Everything into one Parquet file."""
    with duckdb.connect() as connection:
        rows: Any = connection.read_parquet(files)
        rows.project(_quoted(columns)).write_parquet(target, compression="zstd")


def polars_copy(files: list[str], columns: list[str], target: str) -> None:
    polars.scan_parquet(files).select(columns).sink_parquet(target, compression="zstd")


def _quoted(columns: list[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


if __name__ == "__main__":
    answer_questions(
        duckdb_range=duckdb_range, polars_range=polars_range, duckdb_copy=duckdb_copy, polars_copy=polars_copy
    )
