"""A value is made once from a row, for as long as the query returns that row."""

from __future__ import annotations

from typing import NamedTuple

from strandline.ledger.row_memo import RowMemo


class Row(NamedTuple):
    id: int
    name: str


def test_a_row_that_changed_is_made_anew_and_one_that_did_not_is_the_same_object() -> None:
    memo = RowMemo(lambda row: [row.name])
    a, b = memo.read([Row(1, "a"), Row(2, "b")])
    again, changed, new = memo.read([Row(2, "b"), Row(1, "c"), Row(3, "a")])
    assert again is b and changed == ["c"] and new == ["a"] and new is not a


def test_equal_rows_are_returned_as_often_as_they_are_there() -> None:
    assert RowMemo(lambda row: row.id).read([Row(1, "a"), Row(1, "a"), Row(2, "a")]) == [1, 1, 2]


def test_a_row_that_was_not_there_the_last_time_is_forgotten() -> None:
    made = list[Row]()
    memo = RowMemo(lambda row: made.append(row) or row)
    for rows in ([Row(1, "a")], [], [Row(1, "a")]):
        assert memo.read(rows) == rows
    assert len(made) == 2


def test_a_value_of_none_is_kept_too() -> None:
    made = list[Row]()
    memo = RowMemo(made.append)
    assert memo.read([Row(1, "a")]) == memo.read([Row(1, "a")]) == [None]
    assert len(made) == 1
