"""What others do to a dataset's table: refused where the schema can, counted where it cannot, and never delivered."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from strandline.errors import DuplicateNumbers, StrandlineError, TableUnfit
from strandline.lake import Lake
from strandline.ledger import blocks
from strandline.tables.light import open_catalog
from strandline.types import Reserved
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


def test_a_made_up_number_that_the_counter_reaches_is_found_and_not_delivered_as_ours(lake: Lake) -> None:
    """Nobody can tell the two rows apart: reading stops there, and says so."""
    create(lake, "reached", {"n": "long"})
    lake.append("reached", numbers(lake, 1, 3))
    sql(lake, f"INSERT INTO lake.default.reached VALUES ({counter(lake) + 2}, 666)")
    lake.append("reached", numbers(lake, 4, 8))
    with pytest.raises(DuplicateNumbers):
        values(lake, "reached")


def test_a_made_up_number_does_not_make_a_dead_writers_batch_published(lake: Lake) -> None:
    create(lake, "faked", {"n": "long"})
    lake.append("faked", numbers(lake, 1, 3))
    wanted = blocks.NewBlock(lake.dataset("faked").id, 5, "dead", None)
    held, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=0)
    assert isinstance(held, Reserved)
    sql(lake, f"INSERT INTO lake.default.faked VALUES ({held.head.rows.lo}, 666)")
    assert status(lake, "faked").open_blocks == 1
    lake.recover()
    assert open_blocks(lake, "faked") == []
    assert not lake.append("faked", numbers(lake, 4, 8), batch_id="dead").duplicate
    assert sorted(values(lake, "faked")) == list(range(1, 9))
    assert status(lake, "faked").foreign == 1


def test_rows_of_a_block_that_is_not_settled_yet_are_not_taken_for_foreign(lake: Lake) -> None:
    """Published in the table, its writer dead before it could tell the ledger; counted in between."""
    from strandline import failpoints

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
