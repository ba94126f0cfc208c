"""What others do to a dataset's table: refused where the schema can, counted where it cannot, and never delivered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from strandline.core.errors import DuplicateNumbers, RefusedError, StrandlineError, TableUnfit
from strandline.core.types import Reserved
from strandline.deliver.verify.ranges import Fault
from strandline.iceberg.pyiceberg.catalog import open_catalog
from strandline.lake import Lake
from strandline.ledger.ingest import blocks
from tests.conftest import MakeHome
from tests.spark.lakes import count, counter, create, in_main, new_lake, numbers, open_blocks, sql, status, values


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Lake]:
    with new_lake(tmp_path_factory.mktemp("foreign"), make_home, lease_seconds=1) as lake:
        yield lake


def test_rows_without_a_number_are_refused_by_the_schema_itself(lake: Lake) -> None:
    create(lake, "strict", {"n": "long"}, deliver_by=["n"])
    lake.append("strict", numbers(lake, 1, 3))
    for text in (
        "INSERT INTO lake.default.strict (n) VALUES (9)",
        "INSERT INTO lake.default.strict VALUES (null, 'n=9', 9)",
        "INSERT INTO lake.default.strict BY NAME SELECT 9L AS n",
        "INSERT INTO lake.default.strict (_ingest_seq, n) VALUES (99, 9)",
    ):
        with pytest.raises(PySparkException):
            sql(lake, text)
    with pytest.raises(ValueError, match="_ingest_seq"):
        catalog = open_catalog(lake.config)
        catalog.load("strict").append(pa.table({"n": pa.array([9], pa.int64())}))
    assert count(lake, "strict") == 3 and status(lake, "strict").foreign == 0


def test_made_up_numbers_are_counted_never_read_and_move_nothing(lake: Lake) -> None:
    create(lake, "made_up", {"n": "long"})
    create(lake, "neighbour", {"n": "long"})
    lake.append("made_up", numbers(lake, 1, 5))
    theirs = lake.append("neighbour", numbers(lake, 1, 5)).rows
    assert theirs is not None
    lake.append("made_up", numbers(lake, 6, 10))
    before, seal = counter(lake), lake.sealed("made_up")
    token = lake.read_since("made_up", limit=7).continuation
    foreign = [before + 1_000_000, theirs.lo, theirs.hi, -5, 0, 2**63 - 1, -(2**63)]
    rows = ", ".join(f"({n}L, 1000 + {i})" for i, n in enumerate(foreign) if n != -(2**63))
    sql(lake, f"INSERT INTO lake.default.made_up VALUES {rows}, (-9223372036854775807L - 1L, 1999)")
    assert status(lake, "made_up").foreign == len(foreign)
    assert sorted(values(lake, "made_up")) == list(range(1, 11))
    assert values(lake, "made_up", token) == [8, 9, 10]
    sql(
        lake,
        "MERGE INTO lake.default.made_up t USING (SELECT 4 AS n, -77 AS s UNION ALL SELECT 2000, -78) u ON t.n = u.n "
        "WHEN MATCHED THEN UPDATE SET n = 40 WHEN NOT MATCHED THEN INSERT (_ingest_seq, n) VALUES (u.s, u.n)",
    )
    assert status(lake, "made_up").foreign == len(foreign) + 1, "the row that was updated is still ours"
    assert sorted(values(lake, "made_up")) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 40]
    assert (counter(lake), lake.sealed("made_up")) == (before, seal)
    lake.append("made_up", numbers(lake, 11, 12))
    assert sorted(values(lake, "made_up", token)) == [8, 9, 10, 11, 12]
    assert status(lake, "made_up").foreign == len(foreign) + 1
    assert status(lake, "neighbour").foreign == 0 and len(values(lake, "neighbour")) == 5
    rows_of_one_file = "rewrite-all', 'true"  # ours and theirs in one file: it must be opened to be counted
    sql(lake, f"CALL lake.system.rewrite_data_files(table => 'default.made_up', options => map('{rows_of_one_file}'))")
    sql(lake, "DELETE FROM lake.default.made_up WHERE n = 1000")
    assert status(lake, "made_up").foreign == len(foreign)
    assert len(values(lake, "made_up")) == 12


def test_compaction_delete_and_update_make_no_foreign_rows(lake: Lake) -> None:
    create(lake, "touched", {"n": "long"})
    for k in range(3):
        lake.append("touched", numbers(lake, k * 10, k * 10 + 9))
    token = lake.read_since("touched", limit=3).continuation
    sql(lake, "CALL lake.system.rewrite_data_files(table => 'default.touched', options => map('rewrite-all', 'true'))")
    assert status(lake, "touched").foreign == 0
    sql(lake, "DELETE FROM lake.default.touched WHERE n = 25")
    sql(lake, "UPDATE lake.default.touched SET n = -1 WHERE n = 26")
    sql(lake, "ALTER TABLE lake.default.touched SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    sql(lake, "DELETE FROM lake.default.touched WHERE n = 27")
    found = status(lake, "touched")
    assert (found.foreign, found.unnumbered) == (0, 0)
    assert values(lake, "touched", token) == [*range(3, 25), -1, 28, 29]


def test_new_rows_get_numbers_above_those_that_others_made_up(lake: Lake) -> None:
    create(lake, "reached", {"n": "long"})
    create(lake, "beside", {"n": "long"})
    lake.append("reached", numbers(lake, 1, 3))
    high = counter(lake) + 5
    sql(lake, f"INSERT INTO lake.default.reached VALUES ({high}, 666)")
    done = lake.append("reached", numbers(lake, 4, 13))
    assert done.rows is not None and done.rows.lo == high + 1
    found = lake.append("reached", numbers(lake, 14, 15)).rows
    assert found is not None and found.lo == done.rows.hi + 1, "nothing is stepped over twice"
    assert sorted(values(lake, "reached")) == list(range(1, 16))
    assert lake.read_since("reached").df.count() == 15 and status(lake, "reached").foreign == 1


def test_verify_names_rows_that_a_plain_insert_brought(lake: Lake, tmp_path: Path) -> None:
    create(lake, "inserted", {"n": "long"})
    lake.append("inserted", numbers(lake, 1, 5))
    lake.delivery.add("clean", "inserted", "files", {"path": str(tmp_path / "clean"), "format": "jsonl"})
    lake.tick("clean")
    [verdict] = lake.delivery.verify("clean").sinks
    assert verdict.ok and verdict.findings == ()
    sql(lake, f"INSERT INTO lake.default.inserted VALUES ({counter(lake) + 5}, 666), ({counter(lake) + 9}, 667)")
    [verdict] = lake.delivery.verify("clean").sinks
    [note] = verdict.findings
    assert verdict.ok and (note.kind, note.what) == (Fault.NOTE, "default.inserted")
    assert note.detail == "foreign rows, which no sink gets: 2"
    lake.delivery.remove("clean")


def test_a_foreign_number_that_is_one_of_ours_is_counted_and_every_way_to_read_refuses_it(
    lake: Lake, tmp_path: Path
) -> None:
    """Nobody can tell the two rows apart: reading stops there, and says so."""
    create(lake, "same", {"n": "long"})
    first = lake.append("same", numbers(lake, 1, 5)).rows
    assert first is not None
    token = lake.read_since("same").continuation
    lake.delivery.add("early", "same", "files", {"path": str(tmp_path / "early"), "format": "jsonl"})
    lake.tick("early")
    sql(lake, f"INSERT INTO lake.default.same VALUES ({first.lo + 2}, 666)")
    lake.append("same", numbers(lake, 6, 9))
    found = status(lake, "same")
    assert (found.foreign, found.number_twice) == (1, first.lo + 2)
    with pytest.raises(DuplicateNumbers, match=f"number {first.lo + 2} "):
        values(lake, "same")
    with pytest.raises(DuplicateNumbers, match=f"number {first.lo + 2} "):
        lake.read_since("same").df.count()
    assert values(lake, "same", token) == [6, 7, 8, 9] == [r.n for r in lake.read_since("same", token).df.collect()]
    [verdict] = lake.delivery.verify("early").sinks
    [fault] = [f for f in verdict.findings if f.what == f"sequence number {first.lo + 2}"]
    assert not verdict.ok and fault.kind is Fault.DUPLICATE_ROW
    lake.delivery.add("late", "same", "files", {"path": str(tmp_path / "late"), "format": "jsonl"})
    [report] = lake.tick("late").sinks
    assert "is on two rows" in str(report) and not list((tmp_path / "late").rglob("*.jsonl"))
    sql(lake, "CALL lake.system.rewrite_data_files(table => 'default.same', options => map('rewrite-all', 'true'))")
    assert status(lake, "same").number_twice == first.lo + 2, "one file holds both by now"
    sql(lake, "DELETE FROM lake.default.same WHERE n = 666")
    found = status(lake, "same")
    assert (found.foreign, found.number_twice) == (0, None)
    lake.tick()
    assert lake.delivery.verify().ok and values(lake, "same") == list(range(1, 10))
    for name in ("early", "late"):
        lake.delivery.remove(name)


def test_a_number_that_came_between_a_writers_look_and_its_reservation_is_refused_though_rows_were_counted_then(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(lake, "raced", {"n": "long"})
    lake.append("raced", numbers(lake, 1, 6))
    theirs = counter(lake) + 5
    reserve = blocks.reserve

    def late(*args: Any, **options: Any) -> Any:  # the writer has looked at the table, and has reserved nothing yet
        monkeypatch.setattr(blocks, "reserve", reserve)
        sql(lake, f"INSERT INTO lake.default.raced VALUES ({theirs}, 666)")
        found = status(lake, "raced")
        assert (found.foreign, found.number_twice, found.open_blocks) == (1, None, 0)
        return reserve(*args, **options)

    monkeypatch.setattr(blocks, "reserve", late)
    done = lake.append("raced", numbers(lake, 7, 16)).rows
    assert done is not None and done.lo < theirs < done.hi
    with pytest.raises(DuplicateNumbers, match=f"number {theirs} "):
        lake.read_since("raced").df.count()
    assert status(lake, "raced").number_twice == theirs
    sql(lake, "DELETE FROM lake.default.raced WHERE n = 666")
    assert sorted(values(lake, "raced")) == list(range(1, 17)) and status(lake, "raced").foreign == 0


def test_a_table_that_brings_numbers_along_is_adopted_only_if_a_person_says_what_becomes_of_them(lake: Lake) -> None:
    sql(lake, "CREATE TABLE lake.default.brought (_ingest_seq BIGINT, n BIGINT) USING iceberg")
    sql(lake, "INSERT INTO lake.default.brought VALUES (2, 1), (3, 2), (null, 3)")
    before = sql(lake, "SHOW TBLPROPERTIES lake.default.brought")
    with pytest.raises(RefusedError, match=r"2 rows of default\.brought have a value in _ingest_seq") as told:
        lake.adopt_dataset("brought")
    assert "--leave-foreign" in (told.value.hint or "") and "UPDATE" in (told.value.hint or "")
    assert sql(lake, "SHOW TBLPROPERTIES lake.default.brought") == before
    assert all(d.name != "default.brought" for d in lake.datasets())
    assert lake.adopt_dataset("brought", leave_foreign=True).rows == 1
    assert values(lake, "brought") == [3] and status(lake, "brought").foreign == 2
    assert lake.adopt_dataset("brought").rows == 0, "it is known by now what becomes of them"


def test_a_made_up_number_does_not_make_a_dead_writers_batch_published(lake: Lake) -> None:
    create(lake, "faked", {"n": "long"})
    lake.append("faked", numbers(lake, 1, 3))
    wanted = blocks.NewBlock(lake.dataset("faked").id, 5, "dead", None)
    held, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=0)
    assert isinstance(held, Reserved)
    sql(lake, f"INSERT INTO lake.default.faked SELECT id, 666 FROM range({held.head.rows.lo}, {held.head.rows.hi + 1})")
    assert status(lake, "faked").open_blocks == 1
    lake.recover()
    assert open_blocks(lake, "faked") == []
    assert not lake.append("faked", numbers(lake, 4, 8), batch_id="dead").duplicate
    assert sorted(values(lake, "faked")) == list(range(1, 9))
    assert status(lake, "faked").foreign == 5


def test_rows_of_a_block_that_is_not_settled_yet_are_not_taken_for_foreign(lake: Lake) -> None:
    """Published in the table, its writer dead before it could tell the ledger; counted in between."""
    from strandline.core import failpoints

    create(lake, "between", {"n": "long"})
    failpoints.arm("settle.before_mark=fail")
    with pytest.raises(failpoints.FailpointError):
        lake.append("between", numbers(lake, 1, 10))
    failpoints.arm("")
    assert status(lake, "between").foreign == 0 and len(in_main(lake, "between")) == 10
    lake.recover()
    assert status(lake, "between").foreign == 0 and len(values(lake, "between")) == 10


def test_a_column_made_optional_by_hand_is_noticed_and_adopt_takes_the_table_as_it_is(lake: Lake) -> None:
    create(lake, "loosened", {"n": "long"})
    lake.append("loosened", numbers(lake, 1, 3))
    sql(lake, "ALTER TABLE lake.default.loosened ALTER COLUMN _ingest_seq DROP NOT NULL")
    with pytest.raises(TableUnfit, match="no longer required") as unfit:
        lake.append("loosened", numbers(lake, 4, 5))
    assert "adopt" in (unfit.value.hint or "")
    with pytest.raises(TableUnfit):
        lake.read_since("loosened")
    sql(lake, "INSERT INTO lake.default.loosened (n) VALUES (100), (101)")
    assert status(lake, "loosened").unnumbered == 2
    assert lake.adopt_dataset("loosened").rows == 2
    assert status(lake, "loosened").unnumbered == 0
    lake.append("loosened", numbers(lake, 4, 5))
    assert sorted(values(lake, "loosened")) == [1, 2, 3, 4, 5, 100, 101]


@pytest.mark.parametrize(
    "change",
    [
        "UNSET TBLPROPERTIES ('strandline.lake')",
        "UNSET TBLPROPERTIES ('write.metadata.metrics.column._ingest_seq')",
        "SET TBLPROPERTIES ('history.expire.max-ref-age-ms'='1')",
        "SET TBLPROPERTIES ('write.format.default'='avro')",
        "RENAME COLUMN _ingest_seq TO other",
    ],
)
def test_a_table_that_lost_what_the_protocol_needs_takes_no_rows(lake: Lake, change: str) -> None:
    create(lake, name := f"unfit_{abs(hash(change))}", {"n": "long"})
    sql(lake, f"ALTER TABLE lake.default.{name} {change}")
    with pytest.raises(TableUnfit) as unfit:
        lake.append(name, numbers(lake, 1, 2))
    assert unfit.value.hint
    assert open_blocks(lake, name) == []


def test_a_table_dropped_or_replaced_behind_our_back_is_said_to_be(lake: Lake) -> None:
    create(lake, "replaced", {"n": "long"})
    lake.append("replaced", numbers(lake, 1, 2))
    sql(lake, "DROP TABLE lake.default.replaced")
    for attempt in (lambda: lake.append("replaced", numbers(lake, 1, 2)), lambda: lake.read_since("replaced")):
        with pytest.raises(StrandlineError, match="replaced"):
            attempt()
    sql(lake, "CREATE TABLE lake.default.replaced (_ingest_seq BIGINT NOT NULL, n BIGINT) USING iceberg")
    with pytest.raises(TableUnfit, match="another table"):
        lake.append("replaced", numbers(lake, 1, 2))
