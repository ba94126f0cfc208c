"""Schema changes without rewriting: old rows and new ones are read together, at once."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from strandline.core.errors import SchemaError
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.schema_file import parse_type
from strandline.lake import Lake
from tests.conftest import MakeHome
from tests.spark.lakes import create, new_lake, snapshots, sql, status


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("alter"), make_home) as lake:
        yield lake


def rows(lake: Lake, name: str, token: str | None = None) -> list[dict[str, object]]:
    return [row.asDict(recursive=True) for row, _ in lake.read_since(name, token)]


def test_a_dataset_is_altered_without_rewriting_and_read_at_once(lake: Lake) -> None:
    create(lake, "grown", {"a": "int", "f": "float", "d": "decimal(5,2)", "s": "struct<x:int>", "gone": "string"})
    first = "SELECT 1 AS a, 0.5F AS f, 1.25BD AS d, named_struct('x', 1) AS s, 'old' AS gone"
    lake.append("grown", lake.spark.sql(first), batch_id="1")
    files = sql(lake, "SELECT file_path FROM lake.default.grown.files")
    made = len(snapshots(lake, "grown"))

    def kind(text: str):  # type: ignore[no-untyped-def]
        return parse_type(text, where="test")

    lake.alter_dataset("grown", [WidenColumn("a", kind("long")), WidenColumn("f", kind("double"))])
    lake.alter_dataset("grown", [WidenColumn("d", kind("decimal(20,2)")), AddColumn("s.y", kind("list<string>"))])
    lake.alter_dataset("grown", [RenameColumn("a", "b"), DropColumn("gone"), AddColumn("new", kind("timestamptz"))])
    assert len(snapshots(lake, "grown")) == made, "nothing was rewritten"
    old = {"b": 1, "f": 0.5, "d": Decimal("1.25"), "s": {"x": 1, "y": None}, "new": None}
    read = lake.read_since("grown")
    assert read.df.columns == list(old)
    assert rows(lake, "grown") == [old]
    assert read.df.collect()[0].asDict(recursive=True) == old
    second = (
        "SELECT 3000000000L AS b, 1e300D AS f, 123456789012345678.25BD AS d, "
        "named_struct('x', 2, 'y', array('q')) AS s, TIMESTAMP'2024-01-01 00:00:00' AS new"
    )
    lake.append("grown", lake.spark.sql(second), batch_id="2")
    got = rows(lake, "grown")
    assert got[0] == old and got[1]["b"] == 3_000_000_000 and got[1]["s"] == {"x": 2, "y": ["q"]}
    assert rows(lake, "grown", read.continuation) == got[1:]
    assert set(map(tuple, files)) < set(map(tuple, sql(lake, "SELECT file_path FROM lake.default.grown.files")))
    assert (status(lake, "grown").foreign, status(lake, "grown").unnumbered) == (0, 0)
    assert lake.append("grown", lake.spark.sql(second), batch_id="2").duplicate


def test_a_column_dropped_and_added_again_is_a_new_one(lake: Lake) -> None:
    create(lake, "again", {"n": "long", "x": "string"})
    lake.append("again", lake.spark.sql("SELECT 1L AS n, 'secret' AS x"))
    lake.alter_dataset("again", [DropColumn("x")])
    assert rows(lake, "again") == [{"n": 1}]
    lake.alter_dataset("again", [AddColumn("x", parse_type("int", where="x"))])
    assert rows(lake, "again") == [{"n": 1, "x": None}]
    lake.append("again", lake.spark.sql("SELECT 2L AS n, 5 AS x"))
    assert rows(lake, "again") == [{"n": 1, "x": None}, {"n": 2, "x": 5}]


def test_the_old_name_is_refused_and_the_new_one_taken_right_after_a_rename(lake: Lake) -> None:
    create(lake, "renamed", {"n": "long"})
    lake.alter_dataset("renamed", [RenameColumn("n", "m")])
    with pytest.raises(SchemaError, match="no column 'n'"):
        lake.append("renamed", lake.spark.sql("SELECT 1L AS n"))
    lake.append("renamed", lake.spark.sql("SELECT 1L AS m"))
    assert rows(lake, "renamed") == [{"m": 1}]


def test_foreign_rows_stay_out_of_a_read_right_after_an_alter(lake: Lake) -> None:
    create(lake, "mixed", {"n": "long", "p": "string"}, deliver_by=["p"])
    lake.append("mixed", lake.spark.sql("SELECT id AS n, 'a' AS p FROM range(3)"))
    sql(lake, "INSERT INTO lake.default.mixed VALUES (-1, 'p=a', 99, 'a')")
    lake.alter_dataset("mixed", [AddColumn("x", parse_type("int", where="x"))])
    assert [r["n"] for r in rows(lake, "mixed")] == [0, 1, 2]
    assert [row.n for row, _ in lake.read_since("mixed", partition={"p": "a"}, limit=2)] == [0, 1]
    with pytest.raises(SchemaError, match="delivered by it"):
        lake.alter_dataset("mixed", [DropColumn("p")])
