"""Tables of format 1 and 3 are adopted, delivered and maintained as those of format 2 are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import strandline
from tests.spark.lakes import create, numbers, sql, status, values
from tests.spark.sinks import rows, tick
from tests.spark.upkeep import data_files, delete_files

if TYPE_CHECKING:
    from strandline.lake import Lake
    from tests.conftest import MakeHome


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("formats")
    make_home(folder, {"ingest": {"adopt_rows_max": 10}, "maintain": {"compact": {"files_min": 2}}})
    with strandline.init_lake(folder) as lake:
        create(lake, "first", {"n": "long"})  # makes the namespace
        yield lake


TABLES = {
    "format_1": "'format-version'='1'",
    "format_3": "'format-version'='3','write.delete.mode'='merge-on-read','write.update.mode'='merge-on-read'",
}


def lineage(lake: Lake, name: str) -> dict[int, int]:
    return {r[0]: r[1] for r in sql(lake, f"SELECT n, _row_id FROM lake.default.{name}")}


def delete(lake: Lake, name: str, where: str) -> None:
    sql(lake, f"DELETE FROM lake.default.{name} WHERE {where}")


class Fed:
    """An adopted table with one sink."""

    def __init__(self, lake: Lake, name: str, out: Path) -> None:
        self.lake, self.name, self.out = lake, name, out
        self.delivered: set[int] = set()
        lake.delivery.add(name, name, "files", {"path": str(out), "chunk_rows_max": "8"})

    def append(self, lo: int, hi: int) -> None:
        self.lake.append(self.name, numbers(self.lake, lo, hi).selectExpr("n", "'row ' || n AS text"))

    def deliver(self, *expected: int) -> None:
        """These and no others, and what was delivered before is as it was."""
        report = tick(self.lake, self.name)
        assert report.reason is None, report
        self.delivered |= set(expected)
        found = rows(self.out)
        assert len({seq for seq, _ in found}) == len(found)
        assert sorted(n for _, n in found) == sorted(self.delivered)

    def is_proved(self) -> None:
        [verdict] = self.lake.delivery.verify(self.name).sinks
        assert verdict.ok and verdict.rows == len(self.delivered), verdict

    def expire(self) -> None:
        self.lake.maintenance.expire(self.name, older_than=timedelta(0), keep_min=1)

    def retain(self) -> None:
        self.lake.maintenance.retain(self.name, older_than=timedelta(0), accept_clock=True)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_any_format_is_adopted_delivered_compacted_and_retained(
    lake: Lake, kind: str, tmp_path: Path
) -> None:
    name = f"kind_{kind}"
    columns = "(n BIGINT, text STRING) USING iceberg PARTITIONED BY (bucket(2, n))"
    sql(lake, f"CREATE TABLE lake.default.{name} {columns} TBLPROPERTIES ({TABLES[kind]})")
    for lo in (1, 8, 15):
        sql(lake, f"INSERT INTO lake.default.{name} SELECT id, 'row ' || id FROM range({lo}, {lo + 7}, 1, 1)")
    delete(lake, name, "n IN (3, 12)")
    assert set(delete_files(lake, name)) == {"format_1": set(), "format_3": {"PUFFIN"}}[kind]
    ids = lineage(lake, name) if kind == "format_3" else None

    assert lake.adopt_dataset(name).rows == 19
    assert ids is None or lineage(lake, name) == ids, "a row that gets its number stays the row that it is"
    fed = Fed(lake, name, tmp_path / "out")
    fed.append(31, 40)
    delete(lake, name, "n IN (5, 33)")  # before anyone got them
    fed.deliver(*set(range(1, 22)) - {3, 5, 12}, *set(range(31, 41)) - {33})

    fed.append(41, 45)
    delete(lake, name, "n IN (7, 44)")  # one that was delivered, one that was not
    ids = None if ids is None else lineage(lake, name)
    before, there = data_files(lake, name), sorted(values(lake, name))
    lake.maintenance.compact(name)
    assert data_files(lake, name) < before and delete_files(lake, name) == []
    assert sorted(values(lake, name)) == there, "a deleted row does not come back"
    assert ids is None or lineage(lake, name) == ids, "nor does a row become another one"
    fed.append(46, 47)
    fed.deliver(41, 42, 43, 45, 46, 47)

    fed.append(51, 53)
    fed.retain()
    assert sorted(values(lake, name)) == [51, 52, 53], "the sink has none of these"
    fed.expire()
    fed.deliver(51, 52, 53)
    fed.is_proved()
    assert (status(lake, name).unnumbered, status(lake, name).foreign) == (0, 0)


def test_a_table_whose_format_is_raised_between_two_ticks_is_gone_on_with(lake: Lake, tmp_path: Path) -> None:
    sql(
        lake,
        "CREATE TABLE lake.default.raised (n BIGINT, text STRING) USING iceberg TBLPROPERTIES ('format-version'='1')",
    )
    sql(lake, "INSERT INTO lake.default.raised SELECT id, 'row ' || id FROM range(1, 8, 1, 1)")
    lake.adopt_dataset("raised")
    fed = Fed(lake, "raised", tmp_path / "out")
    fed.deliver(*range(1, 8))
    for lo, version in ((11, 2), (21, 3)):
        fed.append(lo, lo + 4)
        properties = f"'format-version'='{version}', 'write.delete.mode'='merge-on-read'"
        sql(lake, f"ALTER TABLE lake.default.raised SET TBLPROPERTIES ({properties})")
        delete(lake, "raised", f"n = {lo + 1}")
        fed.append(lo + 5, lo + 5)
        fed.deliver(lo, lo + 2, lo + 3, lo + 4, lo + 5)
    assert set(delete_files(lake, "raised")) == {"PARQUET", "PUFFIN"}
    lake.maintenance.compact("raised")
    assert delete_files(lake, "raised") == []
    fed.append(31, 33)
    fed.deliver(31, 32, 33)
    fed.is_proved()
    assert sorted(values(lake, "raised")) == sorted(fed.delivered)
