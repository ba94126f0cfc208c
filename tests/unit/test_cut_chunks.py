"""Chunks are cut from rows in the order of their numbers: each row in the chunk that has its number, whatever parts the
rows come in, and files that are not in order are seen before anything is sent."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.core.types import SEQ_COLUMN, Seq, SeqRange
from strandline.deliver.send import data_files
from strandline.deliver.send.build_spark import Shipment, cut, in_runs
from strandline.deliver.sink import Address
from strandline.storage.s3_settings import S3Settings

HERE = S3Settings(None, None)
ADDRESS = Address("lake", "sink", 1, "default.events", "")


def shipments(*bounds: tuple[int, int]) -> list[Shipment]:
    return [Shipment(n, ADDRESS, SeqRange(Seq(lo), Seq(hi)), hi - lo + 1) for n, (lo, hi) in enumerate(bounds)]


def table(numbers: list[int]) -> pa.Table:
    return pa.table({SEQ_COLUMN: pa.array(numbers, pa.int64()), "v": [str(n) for n in numbers]})


@settings(deadline=None)
@given(
    numbers=st.sets(st.integers(1, 60)).map(sorted),
    edges=st.sets(st.integers(1, 61), min_size=2).map(sorted),
    skipped=st.sets(st.integers(0, 20)),
    part_rows=st.integers(1, 20),
)
def test_each_row_is_in_the_chunk_of_its_number(
    numbers: list[int], edges: list[int], skipped: set[int], part_rows: int
) -> None:
    bounds = [(lo, hi - 1) for n, (lo, hi) in enumerate(itertools.pairwise(edges)) if n not in skipped]
    wanted = shipments(*bounds)
    parts = [table(numbers[at : at + part_rows]) for at in range(0, len(numbers), part_rows)]
    found = {s.index: rows[SEQ_COLUMN].to_pylist() for s, rows in cut(parts, SEQ_COLUMN, wanted)}
    expected = {s.index: [n for n in numbers if s.rows.lo <= n <= s.rows.hi] for s in wanted}
    assert found == {index: rows for index, rows in expected.items() if rows}


@given(count=st.integers(1, 50), runs_max=st.integers(1, 60))
def test_runs_hold_every_chunk_once_and_in_order(count: int, runs_max: int) -> None:
    wanted = shipments(*((n * 10 + 1, n * 10 + 10) for n in range(count)))
    runs = in_runs(wanted, runs_max)
    assert [s for run in runs for s in run] == wanted
    assert len(runs) <= runs_max and all(runs)


@given(
    count=st.integers(1, 50),
    runs_max=st.integers(1, 60),
    files=st.sets(st.integers(1, 500)).map(sorted),
)
def test_runs_that_keep_to_files_hold_every_chunk_once_and_are_not_many_more(
    count: int, runs_max: int, files: list[int]
) -> None:
    wanted = shipments(*((n * 10 + 1, n * 10 + 10) for n in range(count)))
    runs = in_runs(wanted, runs_max, files)
    assert [s for run in runs for s in run] == wanted
    assert len(runs) <= 2 * runs_max + 1 and all(runs)


def test_a_run_ends_where_a_file_does() -> None:
    """Files of 8 chunks, for 4 tasks of 7: none of them reads two files."""
    wanted = shipments(*((n * 10 + 1, n * 10 + 10) for n in range(24)))
    runs = in_runs(wanted, 4, [1, 81, 161])
    assert [(run[0].rows.lo, run[-1].rows.hi) for run in runs] == [(1, 80), (81, 160), (161, 240)]


@pytest.mark.parametrize(
    ("numbers", "lo", "hi", "ordered"),
    [
        (list(range(1, 101)), 1, 100, True),
        (list(range(100, 0, -1)), 1, 100, False),
        ([1, 2, 2, 3], 1, 100, False),
        ([1, 2, 50, 3], 1, 100, False),
        ([90, 1, 2, 3], 1, 10, False),  # what is read stops at the last number that is asked for
        ([1, 2, 3, 90, 4], 1, 10, False),
        ([3, 90, 2], 1, 10, False),  # apart, and still one behind the other
    ],
)
@pytest.mark.parametrize("group_rows", [2, 1000])
def test_a_file_tells_whether_its_rows_are_in_order(
    tmp_path: Path, numbers: list[int], lo: int, hi: int, ordered: bool, group_rows: int
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(table(numbers), path, row_group_size=group_rows)
    assert data_files.in_order(str(path), HERE, lo, hi) is ordered


@settings(deadline=None)
@given(
    numbers=st.sets(st.integers(1, 60), min_size=1).map(sorted),
    lo=st.integers(1, 60),
    length=st.integers(0, 30),
    group_rows=st.integers(1, 20),
    part_rows=st.integers(1, 20),
)
def test_of_a_file_in_order_the_rows_asked_for_are_read(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], lo: int, length: int, group_rows: int, part_rows: int
) -> None:
    path = tmp_path_factory.mktemp("file") / "rows.parquet"
    pq.write_table(table(numbers), path, row_group_size=group_rows)
    hi, schema = lo + length, table([1]).schema
    parts = data_files.parts(str(path), HERE, schema, lo, hi, part_rows, ordered=True)
    assert [n for part in parts for n in part[SEQ_COLUMN].to_pylist()] == [n for n in numbers if lo <= n <= hi]
