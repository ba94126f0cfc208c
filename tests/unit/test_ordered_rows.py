"""Rows of a real table in the order of their sequence numbers, however its files lie; without a JVM."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from strandline.core.errors import DuplicateNumbers, StorageError, TableUnfit
from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.pyiceberg import ordered_rows
from strandline.iceberg.pyiceberg.ordered_rows import has_rows, read_ordered
from strandline.iceberg.schema.alteration import AddColumn, DropColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Column, ListOf, MapOf, Primitive, Struct
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake

COLUMNS = [
    Column("id", Primitive("int"), required=True),
    Column("text", Primitive("string")),
    Column("tags", ListOf(Primitive("string"))),
    Column("inner", Struct((Column("at", Primitive("timestamptz")),))),
]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    init_lake(tmp_path).close()
    with open_lake(tmp_path) as made:
        made.create_dataset("events", COLUMNS)
        yield made


def table(lake: Lake) -> Table:
    return lake.catalog.load("default.events")


def add(lake: Lake, numbers: Sequence[int], **more: Any) -> None:
    """One data file with these rows, in this order."""
    target = table(lake)
    rows = [
        {SEQ_COLUMN: n, "id": n, "text": f"row {n}", "tags": [str(n)], "inner": {"at": n * 1_000_000}} | more
        for n in numbers
    ]
    target.append(pa.Table.from_pylist(rows, target.schema().as_arrow()))


def numbers(lake: Lake, lo: int, hi: int, **more: Any) -> list[int]:
    return [n for batch in read_ordered(table(lake), lo, hi, **more).batches for n in batch[SEQ_COLUMN].to_pylist()]


def is_direct(lake: Lake, monkeypatch: pytest.MonkeyPatch, lo: int, hi: int) -> bool:
    """Whether the files are merged, and not scanned window by window."""
    used = []
    with monkeypatch.context() as patched:
        patched.setattr(ordered_rows, "merged", lambda files: used.append(1) or iter(()))
        list(read_ordered(table(lake), lo, hi).batches)
    return bool(used)


def test_files_side_by_side_and_between_each_other_come_in_order(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    add(lake, range(1, 11))
    add(lake, [20, 24, 28])
    add(lake, [21, 22, 30, 31])
    add(lake, [11, 40])
    add(lake, [23])
    assert numbers(lake, 1, 99) == [*range(1, 12), 20, 21, 22, 23, 24, 28, 30, 31, 40]
    assert numbers(lake, 5, 23) == [5, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]
    assert numbers(lake, 12, 19) == numbers(lake, 41, 99) == []
    assert is_direct(lake, monkeypatch, 1, 99)


def test_small_batches_merge_like_large_ones(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    add(lake, range(1, 400, 3))
    add(lake, range(2, 400, 3))
    add(lake, range(300, 600, 3))
    monkeypatch.setattr(ordered_rows, "rows_per_batch", lambda file, groups, most: 7)
    assert numbers(lake, 1, 1000) == sorted([*range(1, 400, 3), *range(2, 400, 3), *range(300, 600, 3)])


def test_a_file_that_is_not_in_order_is_sorted_window_by_window(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    add(lake, [5, 3, 9, 1])
    add(lake, [4, 2])
    assert not is_direct(lake, monkeypatch, 1, 9)
    for window_rows in (1, 2, 3, 100):
        assert numbers(lake, 1, 9, window_rows=window_rows) == [1, 2, 3, 4, 5, 9]
        assert numbers(lake, 2, 4, window_rows=window_rows) == [2, 3, 4]


def test_all_columns_come_with_the_ids_of_the_table(lake: Lake) -> None:
    add(lake, [1])
    found = read_ordered(table(lake), 1, 1)
    [batch] = found.batches
    assert batch.schema == found.schema
    ids = {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in found.schema}
    assert ids == {f.name: f.field_id for f in table(lake).schema().fields}
    [row] = batch.to_pylist()
    assert (row["id"], row["text"], row["tags"], row["inner"]["at"].second) == (1, "row 1", ["1"], 1)


def test_only_the_numbers_can_be_asked_for(lake: Lake) -> None:
    add(lake, [1, 2])
    assert read_ordered(table(lake), 1, 9, columns=[SEQ_COLUMN]).schema.names == [SEQ_COLUMN]
    assert numbers(lake, 1, 9, columns=[SEQ_COLUMN]) == [1, 2]


def test_rows_written_before_a_change_of_columns_come_with_the_columns_of_now(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, [1])
    changes = [
        RenameColumn("text", "words"), WidenColumn("id", Primitive("long")), DropColumn("tags"),
        AddColumn("more", Primitive("double")),
    ]  # fmt: skip
    lake.alter_dataset("events", changes)
    found = read_ordered(table(lake), 1, 1)
    [batch] = found.batches
    [row] = batch.to_pylist()
    assert (row["words"], row["id"], row["more"]) == ("row 1", 1, None) and "tags" not in row
    assert batch.schema.field("id").type == pa.int64()
    assert is_direct(lake, monkeypatch, 1, 1)


@pytest.mark.parametrize("others", [[3], [2, 3, 9]])
def test_a_number_on_two_rows_is_refused(lake: Lake, others: list[int]) -> None:
    add(lake, [1, 2, 3, 4])
    add(lake, others)
    with pytest.raises(DuplicateNumbers, match=f"sequence number {others[0]} is on two rows"):
        numbers(lake, 1, 9)


def test_a_file_that_is_gone_is_said_in_words(lake: Lake) -> None:
    add(lake, [1, 2])
    rows = read_ordered(table(lake), 1, 9).batches
    for file in table(lake).inspect.files()["file_path"].to_pylist():
        Path(file.removeprefix("file://")).unlink()
    with pytest.raises(StorageError):
        next(rows)


def test_whether_a_range_has_rows_at_all(lake: Lake) -> None:
    assert not has_rows(table(lake), 1, 9)
    add(lake, [5])
    assert has_rows(table(lake), 5, 5) and not has_rows(table(lake), 6, 9)


def test_memory_does_not_follow_the_size_of_the_range(lake: Lake) -> None:
    """20 files of about 4 MB each are read with the memory of a few batches."""
    wide = "x" * 1000
    for n in range(20):
        add(lake, range(n * 4000 + 1, (n + 1) * 4000 + 1), text=wide)
    gc.collect()
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for batch in read_ordered(table(lake), 1, 80_000).batches:
        most = max(most, pa.total_allocated_bytes() - before)
        rows += batch.num_rows
    assert rows == 80_000 and most < 40 << 20


def test_row_groups_without_rows_of_the_range_are_not_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.catalog.load("default.events").transaction().set_properties(
        {"write.parquet.row-group-limit": "10"}
    ).commit_transaction()
    add(lake, range(1, 101))
    asked: list[list[int]] = []
    plain = pq.ParquetFile.iter_batches

    def noting(self: Any, *args: Any, **more: Any) -> Any:
        asked.append(more["row_groups"])
        return plain(self, *args, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noting)
    assert numbers(lake, 35, 41) == list(range(35, 42))
    assert set(itertools.chain(*asked)) == {3, 4}


_INNER = Struct((Column("a", Primitive("int")),))
_NESTED = [
    Column("items", ListOf(_INNER)),
    Column("by_name", MapOf(Primitive("string"), _INNER)),
    Column("deep", Struct((Column("items", ListOf(ListOf(_INNER))),))),
]


def _nested(lake: Lake, *rows: dict[str, Any]) -> Table:
    """A table with these rows in one file; written without PyIceberg, which writes an empty list for a null one."""
    lake.create_dataset("nested", _NESTED)
    made = lake.catalog.load("default.nested")
    shape = schema_to_pyarrow(made.schema(), include_field_ids=True)
    content = pa.Table.from_pylist([dict(row) for row in rows], shape)
    made.append(content)
    [task] = made.scan().plan_files()
    pq.write_table(content, task.file.file_path.removeprefix("file://"))
    return made


def test_null_and_empty_stay_apart_in_lists_and_maps_of_structs(lake: Lake) -> None:
    rows: list[dict[str, Any]] = [
        {SEQ_COLUMN: 1, "items": None, "by_name": None, "deep": {"items": None}},
        {SEQ_COLUMN: 2, "items": [], "by_name": [], "deep": None},
        {SEQ_COLUMN: 3, "items": [{"a": 1}, None], "by_name": [("k", {"a": None})], "deep": {"items": [None, []]}},
    ]
    made = _nested(lake, *rows)
    read = [row for batch in read_ordered(made, 1, 9).batches for row in batch.to_pylist()]
    assert read == rows


def test_what_only_spark_can_read_is_refused_and_not_changed(lake: Lake) -> None:
    row = {"items": None, "by_name": None, "deep": None}
    made = _nested(lake, {SEQ_COLUMN: 2, **row}, {SEQ_COLUMN: 1, **row})  # not in order
    with pytest.raises(TableUnfit, match="items"):
        read_ordered(made, 1, 9)
