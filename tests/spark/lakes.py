"""Small lakes for tests: each in a folder of its own, all in the one JVM of the test process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import strandline
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.ingest import blocks, published_blocks, sequence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.core.types import Block, Dataset, OpenBlock, SeqRange
    from strandline.lake import Lake
    from tests.conftest import MakeHome


@contextmanager
def new_lake(folder: Path, make_home: MakeHome, **ingest: Any) -> Iterator[Lake]:
    """A lake whose settings of ingest are these."""
    make_home(folder, {"ingest": ingest})
    with strandline.init_lake(folder) as lake:
        yield lake


def create(lake: Lake, name: str, columns: Mapping[str, str], **options: Any) -> Dataset:
    return lake.create_dataset(name, parse_columns([{"name": n, "type": t} for n, t in columns.items()]), **options)


def numbers(lake: Lake, lo: int, hi: int, partitions: int = 2) -> DataFrame:
    """Rows `n` of lo..hi."""
    return lake.spark.range(lo, hi + 1, 1, partitions).withColumnRenamed("id", "n")


def sql(lake: Lake, text: str) -> list[Any]:
    return lake.spark.sql(text).collect()


def in_order(rows: Iterable[Any]) -> list[Any]:
    """As `ORDER BY` has them, which costs Spark more than all else of a small query."""
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


def in_main(lake: Lake, name: str, column: str = "n") -> list[tuple[int, Any]]:
    """Number and value of every row that anyone who reads main sees."""
    return [tuple(r) for r in in_order(sql(lake, f"SELECT _ingest_seq, {column} FROM lake.default.{name}"))]


def values(lake: Lake, name: str, token: str | None = None, column: str = "n", **options: Any) -> list[Any]:
    return [row[column] for row, _ in lake.read_since(name, token, **options)]


def counter(lake: Lake) -> int:
    with lake.ledger.read() as connection:
        return sequence.read(connection).last


def open_blocks(lake: Lake, name: str) -> list[OpenBlock]:
    with lake.ledger.read() as connection:
        return blocks.open_blocks(connection, lake.dataset(name).id)


def owned(lake: Lake, name: str) -> list[SeqRange]:
    with lake.ledger.read() as connection:
        return published_blocks.owned_ranges(connection, lake.dataset(name).id)


def batch(lake: Lake, name: str, batch_id: str) -> Block | None:
    return lake.ledger.query(blocks.of_batch, lake.dataset(name).id, batch_id)


def status(lake: Lake, name: str) -> Any:
    return next(d for d in lake.status().datasets if d.name == f"default.{name}")


def count(lake: Lake, name: str, where: str = "true") -> int:
    return int(sql(lake, f"SELECT count(*) FROM lake.default.{name} WHERE {where}")[0][0])


def snapshots(lake: Lake, name: str) -> Sequence[int]:
    return [r[1] for r in in_order(sql(lake, f"SELECT made_current_at, snapshot_id FROM lake.default.{name}.history"))]
