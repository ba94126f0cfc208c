"""What the footer of a data file says about its sequence numbers, and which row groups are read for a range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.types import SEQ_COLUMN
from strandline.iceberg.parquet_rows import footer_bounds, row_groups
from strandline.reconcile.suspects import read_footer

GROUP_ROWS = 2


def written(path: Path, numbers: Any, **options: Any) -> pq.ParquetFile:
    nested = pa.array([{"a": 1, "b": 2}] * len(numbers))
    pq.write_table(pa.table({"inner": nested, SEQ_COLUMN: numbers}), path, row_group_size=GROUP_ROWS, **options)
    return pq.ParquetFile(path)


def test_a_row_group_has_bounds_if_all_its_rows_have_numbers(tmp_path: Path) -> None:
    numbers = pa.array([3, 1, 5, None, None, None, 9, 9], pa.int64())
    file = written(tmp_path / "a", numbers)
    assert footer_bounds(file.metadata) == [(1, 3), None, None, (9, 9)]
    assert row_groups(file, 4, 9) == ([1, 2, 3], False), "a group without bounds may have any number"
    assert row_groups(file, 1, 3) == ([0, 1, 2], False)
    whole = written(tmp_path / "b", numbers.take(pa.array([0, 1, 6, 7])))
    assert row_groups(whole, 1, 3) == ([0], True) and row_groups(whole, 2, 9) == ([0, 1], False)


@pytest.mark.parametrize(
    ("numbers", "options"),
    [
        (pa.array([1, 2], pa.int64()), {"write_statistics": False}),
        (pa.array(["1", "2"]), {}),
        (pa.array([1, None], pa.int64()), {}),
    ],
    ids=["no statistics", "no numbers", "a row without a number"],
)
def test_no_reader_relies_on_bounds_that_do_not_speak_for_all_rows(
    tmp_path: Path, numbers: Any, options: dict[str, Any]
) -> None:
    assert footer_bounds(written(tmp_path / "a", numbers, **options).metadata) == [None]
    content = (tmp_path / "a").read_bytes()
    footer = read_footer(lambda count: content[-count:], len(content))
    assert footer is not None and (footer.row_count, footer.rows) == (2, None)


def test_a_file_without_the_column_has_no_bounds(tmp_path: Path) -> None:
    assert footer_bounds(written(tmp_path / "a", pa.array([1, 2, 3])).metadata, "elsewhere") == [None, None]
