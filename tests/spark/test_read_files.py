"""A few rows are read off the files, without Spark, and are the same as Spark's: every type, whatever the table went
through."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.core.errors import SchemaError, TableRolledBack
from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake
from strandline.read.read_files import RowsOfFiles
from tests.campaign import scaled, seed
from tests.conftest import MakeHome
from tests.spark.lakes import create, new_lake, numbers, sql
from tests.spark.test_lines import FROM_INTEGERS, NESTED, PLAIN, a_value, converted, raw_type

KEYS = {
    "keys": "map<binary,map<boolean,map<int,long>>>",
    "times": "map<timestamptz,map<timestamp,map<decimal(38,10),float>>>",
    "days": "map<date,map<uuid,double>>",
    'odd name, "quoted" \t': "string",
}
COLUMNS = [
    Column("who", Primitive("string")),
    *parse_columns([{"name": n, "type": k} for n, k in (PLAIN | NESTED | KEYS).items()]),
]
NAMES = ("ada", "bob", None)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    logging.getLogger("strandline.read.read_files").setLevel(logging.DEBUG)  # why Spark was needed
    with new_lake(tmp_path_factory.mktemp("lake"), make_home) as made:
        yield made


def frame_of(lake: Lake, columns: Sequence[Column], rng: random.Random, rows: int) -> DataFrame:
    """Random rows. The columns have other names before they are converted: not every name can be written in SQL."""
    plain = {f"c{n}": column for n, column in enumerate(columns)}
    values = [
        tuple(rng.choice(NAMES) if c.name == "who" else a_value(rng, c.type) for c in columns) for _ in range(rows)
    ]
    raw = lake.spark.createDataFrame(values, ", ".join(f"{name} {raw_type(c.type)}" for name, c in plain.items()))
    made = (F.expr(converted(name, c.type, FROM_INTEGERS)).alias(c.name) for name, c in plain.items())
    return raw.select(*made).repartition(2)


def same(lake: Lake, dataset: str, token: str | None = None, *, from_files: bool = True, **options: Any) -> str:
    """Both ways give the same lines, each with the same token, and the same token at the end, which is returned."""
    found, wanted = lake.read_lines(dataset, token, **options), lake.read_since(dataset, token, **options)
    assert isinstance(found, RowsOfFiles) == from_files
    assert list(found.lines()) == list(wanted.lines())
    assert found.continuation == wanted.continuation
    return found.continuation


def test_rows_read_off_the_files_are_those_that_spark_reads_whatever_the_schema_went_through(lake: Lake) -> None:
    rng = random.Random(seed(5))
    for turn in range(scaled(1, 10)):
        name = f"all{turn}"
        lake.create_dataset(name, COLUMNS, deliver_by=["who"])
        lake.append(name, frame_of(lake, COLUMNS, rng, 30))
        changes = [
            RenameColumn("small", "smaller"),
            WidenColumn("smaller", Primitive("long")),
            WidenColumn("single", Primitive("double")),
            AddColumn("large_again", Primitive("long")),
            DropColumn("large"),
        ]
        now = list(COLUMNS)
        for change in changes:
            lake.alter_dataset(name, [change])
            if rng.random() < 0.5 or change is changes[-1]:
                same(lake, name, limit=5)  # no snapshot has the new schema yet
                now = [c for c in lake.catalog.columns(name) if not c.name.startswith("_ingest")]
                lake.append(name, frame_of(lake, now, rng, 7))
        same(lake, name)
        token = same(lake, name, limit=11, internal=True)
        same(lake, name, token, limit=1)
        same(lake, name, limit=9, partition={"who": rng.choice(NAMES)})
        same(lake, name, limit=9, columns=["large_again", "who"], until=33)
        same(lake, name, token, until=12)
        last = same(lake, name)
        same(lake, name, last, limit=3)
        lake.maintenance.compact(name)
        same(lake, name, limit=20)


def test_rows_that_only_spark_can_read_are_left_to_it(lake: Lake) -> None:
    create(lake, "deleted", {"n": "long"})
    lake.append("deleted", numbers(lake, 1, 20))
    same(lake, "deleted", limit=3)
    sql(lake, "ALTER TABLE lake.default.deleted SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    sql(lake, "DELETE FROM lake.default.deleted WHERE n IN (2, 5)")
    same(lake, "deleted", limit=3, from_files=False)
    create(lake, "orc", {"n": "long"})
    sql(lake, "ALTER TABLE lake.default.orc SET TBLPROPERTIES ('write.format.default' = 'orc')")
    lake.append("orc", numbers(lake, 1, 5))
    same(lake, "orc", limit=3, from_files=False)


def test_foreign_rows_are_not_read_off_the_files(lake: Lake) -> None:
    dataset = create(lake, "mixed", {"n": "long"})
    lake.append("mixed", numbers(lake, 1, 5))
    first = lake.sealed("mixed")
    assert first is not None
    lake.append("mixed", numbers(lake, 6, 9))
    sql(lake, f"INSERT INTO lake.{dataset.name} SELECT {first + 1_000_000} AS {SEQ_COLUMN}, 77 AS n")
    create(lake, "next_to_it", {"n": "long"})
    lake.append("next_to_it", numbers(lake, 1, 3))
    sql(lake, f"INSERT INTO lake.{dataset.name} SELECT {lake.sealed('next_to_it')} AS {SEQ_COLUMN}, 78 AS n")
    lake.append("mixed", numbers(lake, 10, 12))
    same(lake, "mixed")
    assert '{"n":78}' not in [text for text, _ in lake.read_lines("mixed").lines()]


def test_both_ways_refuse_the_same_requests_and_the_same_table(lake: Lake) -> None:
    create(lake, "small", {"n": "long"})
    lake.append("small", numbers(lake, 1, 3))
    for wrong in ({"columns": ["m"]}, {"columns": ["n", "n"]}, {"limit": 0}, {"partition": "x"}):
        for read in (lake.read_lines, lake.read_since):
            with pytest.raises(SchemaError):
                read("small", **wrong)
    [before] = sql(lake, "SELECT snapshot_id FROM lake.default.small.refs WHERE name = 'main'")
    lake.append("small", numbers(lake, 4, 6))
    sql(lake, f"CALL lake.system.set_current_snapshot('default.small', {before[0]})")
    for read in (lake.read_lines, lake.read_since):
        with pytest.raises(TableRolledBack):
            read("small", limit=1)
