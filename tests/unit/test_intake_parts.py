"""What the intake decides without Spark: how bodies are cut into tasks, and which rows still fit their table."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.errors import FailedError, SchemaError, StorageError
from strandline.core.types import Seq, SeqRange
from strandline.ledger.receive.batches import BatchBody
from strandline.ledger.receive.senders import PlacedBody
from strandline.receive.batch_frame import ROWS_PER_TASK_MIN, SpooledRows, cut, in_order
from strandline.receive.count_received import ReceivedCounter, describe
from strandline.receive.failed_batches import explained
from strandline.receive.schema_adapt import BodyUnfit, SchemaAdapter


def bodies(*sizes: int) -> list[BatchBody]:
    found, place = [], 0
    for n, rows in enumerate(sizes):
        found.append(BatchBody(n, f"t/{n}.arrow", rows, place))
        place += rows
    return found


def test_bodies_are_cut_into_runs_that_leave_none_out_and_turn_none_around() -> None:
    chance = random.Random(5)
    for _ in range(500):
        sizes = [chance.choice((1, 750, 5000, 60_000, 400_000)) for _ in range(chance.randrange(1, 40))]
        tasks_max = chance.randrange(1, 9)
        loads = in_order(bodies(*sizes))
        edges = cut(loads, tasks_max)
        assert edges[0] == 0 and edges[-1] == len(loads)
        assert edges == sorted(set(edges)), "a run without bodies"
        assert len(edges) - 1 <= min(tasks_max, max(1, sum(sizes) // ROWS_PER_TASK_MIN))


def test_many_small_bodies_are_few_tasks_of_about_the_same_size() -> None:
    loads = [SpooledRows(f"t/{n}.arrow", 5000) for n in range(200)]
    assert cut(loads, 4) == [0, 50, 100, 150, 200]
    assert cut(loads[:3], 4) == [0, 3], "too few for more than one task"


@pytest.mark.parametrize("places", [(0, 5, 11), (1, 5, 10), (0, 5, 9)])
def test_a_batch_whose_places_do_not_follow_each_other_is_not_ingested(places: tuple[int, ...]) -> None:
    told = [BatchBody(n, f"t/{n}.arrow", 5, place) for n, place in enumerate(places)]
    with pytest.raises(FailedError, match="contradicts itself"):
        in_order(told)


def fitted(rows: dict[str, Any], *fields: tuple[str, pa.DataType], required: str | None = None) -> pa.RecordBatch:
    wanted = pa.schema([pa.field(*f) for f in fields])
    return SchemaAdapter(wanted, () if required is None else (required,)).fit(pa.RecordBatch.from_pydict(rows))


def test_a_column_that_was_added_meanwhile_is_null() -> None:
    found = fitted({"n": [1, 2]}, ("n", pa.int64()), ("new", pa.string()))
    assert found.to_pydict() == {"n": [1, 2], "new": [None, None]}


def test_a_column_that_was_widened_meanwhile_keeps_its_values() -> None:
    given = {
        "i": pa.array([1, None], pa.int32()),
        "f": pa.array([0.5, None], pa.float32()),
        "d": pa.array([Decimal("1.25"), None], pa.decimal128(5, 2)),
    }
    found = fitted(given, ("d", pa.decimal128(9, 2)), ("f", pa.float64()), ("i", pa.int64()))
    assert found.to_pydict() == {"d": [Decimal("1.25"), None], "f": [0.5, None], "i": [1, None]}


def test_a_column_that_is_gone_makes_the_rows_wait_only_if_it_would_lose_something() -> None:
    assert fitted({"n": [1], "gone": pa.array([None], pa.string())}, ("n", pa.int64())).to_pydict() == {"n": [1]}
    with pytest.raises(BodyUnfit, match="'gone'"):
        fitted({"n": [1, 2], "gone": [None, "x"]}, ("n", pa.int64()))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array([1], pa.int64()), pa.int32()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1], pa.int64()), pa.string()),
        (pa.array([1.0]), pa.float32()),
        (pa.array([Decimal("1.25")], pa.decimal128(5, 2)), pa.decimal128(9, 1)),
        (pa.array([[1]], pa.list_(pa.int64())), pa.list_(pa.int32())),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())])),
    ],
)
def test_a_value_is_never_narrowed_or_guessed(given: pa.Array[Any], wanted: pa.DataType) -> None:
    with pytest.raises(BodyUnfit, match="'c'"):
        fitted({"c": given}, ("c", wanted))


def test_the_same_type_in_another_spelling_fits() -> None:
    given = {
        "s": pa.array(["é"], pa.large_string()),
        "b": pa.array([b"12"], pa.binary(2)),
        "l": pa.array([[1]], pa.large_list(pa.int32())),
        "t": pa.array([{"a": 1}], pa.struct([("a", pa.int32())])),
    }
    wanted = pa.struct([("a", pa.int64()), ("z", pa.string())])
    found = fitted(given, ("s", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.int64())), ("t", wanted))
    assert found.to_pydict() == {"s": ["é"], "b": [b"12"], "l": [[1]], "t": [{"a": 1, "z": None}]}


def test_a_column_that_is_required_by_now_must_have_values() -> None:
    assert fitted({"n": [1]}, ("n", pa.int64()), required="n").num_rows == 1
    for rows in ({"n": [1, None]}, {"m": pa.array([None, None], pa.int64())}):
        with pytest.raises(BodyUnfit, match="'n'"):
            fitted(rows, ("n", pa.int64()), required="n")


def test_what_a_task_said_of_rows_that_do_not_fit_is_told_with_what_to_do() -> None:
    wrapped = FailedError(
        "the batch cannot be counted: strandline.receive.schema_adapt.BodyUnfit: no column 'x' any more"
    )
    told = explained(wrapped)
    assert isinstance(told, SchemaError) and told.message == "no column 'x' any more"
    assert "dataset alter" in (told.hint or "")
    other = StorageError("away")
    assert explained(other) is other


def test_rows_that_are_gone_or_there_twice_are_named_as_the_sender_knows_them() -> None:
    dense = PlacedBody(SeqRange(Seq(4695), Seq(4704)), 10, "d", Seq(101), "t/x.arrow")
    told = describe(dense, ReceivedCounter(10, 9, ((105, 2), (110, 0))))
    assert told == (
        "row 5 (sequence number 4699 at the sender) is there twice; row 10 (sequence number 4704 at the sender) is gone"
    )
    gaps = PlacedBody(SeqRange(Seq(1), Seq(50)), 10, "d", Seq(101), "t/x.arrow")
    assert (
        describe(gaps, ReceivedCounter(12, 10, ((103, 3),)))
        == "row 3 is there 3 times; in all, 0 of 10 rows are gone and 2 are there once too often"
    )
