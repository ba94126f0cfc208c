"""Which reads go directly to the files, and what is planned for them; without a JVM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from strandline.core.errors import DuplicateNumbers, SchemaError, TableRolledBack, TableUnfit
from strandline.core.types import PARTITION_COLUMN, SEQ_COLUMN, Reserved, SnapshotId, Staged
from strandline.iceberg.pyiceberg.plain_files import plan_plain_files, read_plain_files
from strandline.iceberg.row_json import OnlyJavaWrites, json_lines
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake
from strandline.ledger.ingest import blocks
from strandline.read.read_files import ROWS_MAX, ReadFacts, why_spark

FITS = ReadFacts(limit=2, counts_known=True, may_repeat_numbers=False, rows=10, writes_floats=False, java=None)


@pytest.mark.parametrize(
    "change",
    [
        {"counts_known": False},
        {"may_repeat_numbers": True},
        {"rows": None},
        {"writes_floats": True},
        {"limit": None, "rows": ROWS_MAX + 1},
        {"limit": ROWS_MAX + 1, "rows": ROWS_MAX + 1},
    ],
)
def test_spark_reads_what_the_files_alone_do_not_say(change: dict[str, Any]) -> None:
    assert why_spark(FITS) is None
    assert why_spark(replace(FITS, **change)) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"limit": None},
        {"rows": 0},
        {"rows": 10**9, "limit": ROWS_MAX},
        {"writes_floats": True, "java": 17},
        {"limit": 10**9, "rows": ROWS_MAX},
    ],
)
def test_few_rows_are_read_off_the_files_however_many_the_table_has(change: dict[str, Any]) -> None:
    assert why_spark(replace(FITS, **change)) is None


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    init_lake(tmp_path).close()
    with open_lake(tmp_path) as lake:
        lake.create_dataset("events", [Column("id", Primitive("long"))])
        yield lake.catalog.load("default.events")


def add(table: Table, numbers: Sequence[int]) -> None:
    rows = [{SEQ_COLUMN: n, "id": n * 10} for n in numbers]
    table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))


def read(table: Table, lo: int, hi: int, **more: Any) -> list[int]:
    files = plan_plain_files(table, lo, hi, files_max=100)
    assert files is not None
    batches = read_plain_files(table, files, lo, hi, columns=[SEQ_COLUMN], **more)
    return [n for batch in batches for n in batch.column(SEQ_COLUMN).to_pylist()]


def test_files_that_lie_across_each_other_are_read_in_order(table: Table) -> None:
    for numbers in ([5, 6, 9], [1, 2, 3], [4, 7, 8], [20, 21]):
        add(table, numbers)
    assert read(table, 1, 100) == [*range(1, 10), 20, 21]
    assert read(table, 3, 7, rows_max=1) == [3, 4, 5, 6, 7]
    assert read(table, 10, 19) == []


def test_only_files_that_may_have_the_rows_are_planned_and_only_the_first_is_opened_for_the_first_row(
    table: Table,
) -> None:
    for lo in (1, 11, 21):
        add(table, range(lo, lo + 10))
    files = plan_plain_files(table, 5, 15, files_max=100)
    assert files is not None and [(f.lo, f.hi, f.rows) for f in files] == [(1, 10, 10), (11, 20, 10)]
    Path(files[1].location.removeprefix("file://")).unlink()
    first = next(read_plain_files(table, files, 5, 15))
    assert first.column(SEQ_COLUMN).to_pylist() == [5, 6, 7, 8, 9, 10]


def test_too_many_files_are_not_listed(table: Table) -> None:
    for n in range(1, 4):
        add(table, [n])
    assert plan_plain_files(table, 1, 100, files_max=2) is None


def test_rows_that_are_not_in_order_or_twice_are_not_read(table: Table) -> None:
    add(table, [3, 2, 1])
    with pytest.raises(TableUnfit):
        read(table, 1, 100)
    add(table, [10, 11])
    add(table, [11, 12])
    with pytest.raises(DuplicateNumbers):
        read(table, 10, 100)


def test_files_that_say_nothing_about_arrow_are_read_as_spark_writes_them(tmp_path: Path) -> None:
    """Lists of structs are taken from the file itself, whose texts and lists are of smaller types then."""
    init_lake(tmp_path).close()
    with open_lake(tmp_path) as lake:
        lake.create_dataset(
            "nested", parse_columns([{"name": "odd name", "type": "map<string,list<struct<a:string>>>"}])
        )
        table = lake.catalog.load("nested")
        rows = [{SEQ_COLUMN: 1, "odd name": [("k", [{"a": "x"}, None])]}, {SEQ_COLUMN: 2, "odd name": None}]
        table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
        files = plan_plain_files(table, 1, 2, files_max=1)
        assert files is not None
        path = files[0].location.removeprefix("file://")
        pq.write_table(pq.ParquetFile(path).read(), path, store_schema=False)
        [batch] = read_plain_files(table, files, 1, 2)
        assert json_lines(batch.select(["odd name"]), 17) == [
            '{"odd name":{"k":[{"a":"x"},null]}}',
            '{"odd name":null}',
        ]


def test_what_only_java_can_write_is_left_to_it() -> None:
    keys = pa.map_(pa.struct([("a", pa.int32())]), pa.int32())
    for column in (pa.array([[({"a": 1}, 2)]], keys), pa.array([1], pa.time64("us"))):
        with pytest.raises(OnlyJavaWrites):
            json_lines(pa.record_batch([column], ["c"]), 17)


# Whole reads, of rows that are ingested here without Spark.


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    def spark(*_: object) -> None:
        raise LeftToSpark

    monkeypatch.setattr(Lake, "_rows", spark)
    init_lake(tmp_path).close()
    with open_lake(tmp_path) as made:
        made.create_dataset(
            "events", [Column("who", Primitive("string")), Column("n", Primitive("long"))], deliver_by=["who"]
        )
        yield made


class LeftToSpark(Exception):
    pass


def ingest(lake: Lake, rows: Sequence[tuple[str, int]]) -> SnapshotId:
    """A block of its own; where it begins is where the last one ends."""
    dataset = lake.dataset("events")
    wanted = blocks.NewBlock(dataset.id, len(rows), f"batch {rows[0]}", None)
    block, _ = blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
    assert isinstance(block, Reserved)
    snapshot = append(lake, [(block.head.rows.lo + n, who, value) for n, (who, value) in enumerate(rows)])
    assert blocks.mark_staged(lake.ledger, lake.witness, block, snapshot)
    staged = blocks.find_block(lake.ledger, block.head)
    assert isinstance(staged, Staged)
    assert blocks.mark_published(lake.ledger, staged, row_count=len(rows), snapshot=snapshot)
    return snapshot


def append(lake: Lake, rows: Sequence[tuple[int, str, int]]) -> SnapshotId:
    table = lake.catalog.load("events")
    found = [{SEQ_COLUMN: seq, PARTITION_COLUMN: f"who={who}", "who": who, "n": n} for seq, who, n in rows]
    table.append(pa.Table.from_pylist(found, table.schema().as_arrow()))
    current = table.current_snapshot()
    assert current is not None
    return SnapshotId(current.snapshot_id)


def texts(lake: Lake, **options: Any) -> list[str]:
    return [text for text, _ in lake.read_lines("events", **options).lines()]


def test_a_read_goes_on_after_its_last_row(lake: Lake) -> None:
    ingest(lake, [("ada", 1), ("bob", 2), ("ada", 3)])
    ingest(lake, [("eve", 4)])
    assert texts(lake, limit=1) == ['{"who":"ada","n":1}']
    first = lake.read_lines("events", limit=2, columns=["n"])
    assert [text for text, _ in first.lines()] == ['{"n":1}', '{"n":2}']
    assert [token for _, token in first.lines()][-1] == first.continuation
    rest = lake.read_lines("events", first.continuation, columns=["n", SEQ_COLUMN])
    assert [text for text, _ in rest.lines()] == ['{"n":3,"_ingest_seq":3}', '{"n":4,"_ingest_seq":4}']
    assert list(lake.read_lines("events", rest.continuation, limit=5).lines()) == []
    assert texts(lake, partition={"who": "ada"}, columns=["n"], limit=2) == ['{"n":1}', '{"n":3}']
    assert texts(lake, until=2, columns=["n"]) == ['{"n":1}', '{"n":2}']


def test_what_is_not_settled_and_foreign_rows_are_not_read(lake: Lake) -> None:
    ingest(lake, [("ada", 1)])
    append(lake, [(1000, "mallory", 66)])
    assert texts(lake, columns=["n"]) == ['{"n":1}']
    wanted = blocks.NewBlock(lake.dataset("events").id, 1, "open", None)
    blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=60)
    assert texts(lake, columns=["n"]) == ['{"n":1}']


def test_a_number_on_two_rows_and_a_block_of_a_dead_writer_are_left_to_spark(lake: Lake) -> None:
    ingest(lake, [("ada", 1), ("bob", 2)])
    wanted = blocks.NewBlock(lake.dataset("events").id, 1, "dead", None)
    blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=-60)
    assert texts(lake, limit=2, columns=["n"]) == ['{"n":1}', '{"n":2}']  # whatever comes after them
    with pytest.raises(LeftToSpark):
        texts(lake, limit=3)
    append(lake, [(2, "mallory", 66)])
    with pytest.raises(LeftToSpark):
        texts(lake, limit=1)


def test_a_bad_request_and_a_table_that_was_rolled_back_are_refused(lake: Lake) -> None:
    before = ingest(lake, [("ada", 1)])
    for wrong in ({"columns": ["m"]}, {"columns": ["n", "n"]}, {"limit": 0}):
        with pytest.raises(SchemaError):
            texts(lake, **wrong)
    ingest(lake, [("bob", 2)])
    lake.catalog.load("events").manage_snapshots().set_current_snapshot(snapshot_id=before).commit()
    with pytest.raises(TableRolledBack):
        texts(lake, limit=1)


def test_the_command_reads_a_few_rows_without_loading_spark(lake: Lake) -> None:
    ingest(lake, [("ada", 1), ("bob", 2)])
    code = (
        "import sys\n"
        "from strandline.cli.main import run\n"
        "code = run(['read', 'events', '--limit', '1'])\n"
        "sys.exit(code or 70 * bool({'pyspark', 'py4j', 'alembic', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=lake.config.home, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout) == (0, '{"who":"ada","n":1}\n'), done.stderr
    assert done.stderr.startswith("next: sl1.")
