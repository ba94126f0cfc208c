"""A segment on the wire: whatever happens to it on the way, no row is taken that was not sent."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import SegmentDamaged
from strandline.core.types import SEQ_COLUMN
from strandline.replicate.segment_stream import SegmentReader, encode

SCHEMA = pa.schema([pa.field(SEQ_COLUMN, pa.int64(), nullable=False), pa.field("text", pa.string())])


def batches(numbers: Sequence[Sequence[int]]) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pydict({SEQ_COLUMN: list(some), "text": [f"row {n}" for n in some]}, SCHEMA)
        for some in numbers
    ]


SENT = batches([range(5, 40), range(50, 51), range(60, 90)])
NUMBERS = [*range(5, 40), 50, *range(60, 90)]
BODY = b"".join(encode(SCHEMA, SENT))


def numbers_of(found: Sequence[pa.RecordBatch]) -> list[int]:
    return [n for batch in found for n in batch.column(SEQ_COLUMN).to_pylist()]


def read(body: bytes, *, behind: int = 0) -> tuple[list[pa.RecordBatch], SegmentDamaged | None]:
    """The batches that were given, and why there were no more."""
    found: list[pa.RecordBatch] = []
    try:
        for batch in SegmentReader(io.BytesIO(body), behind=behind):
            found.append(batch)
    except SegmentDamaged as e:
        return found, e
    return found, None


def test_what_was_sent_arrives_with_its_count_and_its_last_number() -> None:
    reader = SegmentReader(io.BytesIO(BODY))
    found = list(reader)
    assert reader.schema == SCHEMA
    assert pa.Table.from_batches(found) == pa.Table.from_batches(SENT)
    assert reader.end is not None and (reader.end.rows, reader.end.last) == (len(NUMBERS), 89)


def test_a_segment_of_which_nothing_is_left_is_a_complete_stream_without_rows() -> None:
    reader = SegmentReader(io.BytesIO(b"".join(encode(SCHEMA, []))), behind=7)
    assert list(reader) == []
    assert reader.end is not None and (reader.end.rows, reader.end.last) == (0, None)


def test_each_message_leaves_as_soon_as_its_rows_are_there() -> None:
    sent = encode(SCHEMA, iter(SENT))
    assert len(next(sent)) < len(BODY) / 2


@given(st.integers(0, len(BODY) - 1))
def test_a_stream_that_was_cut_off_gives_whole_batches_and_says_that_it_is_not_complete(at: int) -> None:
    found, error = read(BODY[:at])
    # Arrow's own mark at the end is not needed: the last message says that it is the last.
    assert error is not None or at >= len(BODY) - 8
    assert numbers_of(found) == NUMBERS[: len(numbers_of(found))]


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed_before_a_row_of_it_is_given(at: int, change: int) -> None:
    damaged = bytearray(BODY)
    damaged[at] ^= change
    found, error = read(bytes(damaged))
    assert numbers_of(found) == NUMBERS[: len(numbers_of(found))]
    assert pa.Table.from_batches(found, SCHEMA) == pa.Table.from_batches(SENT[: len(found)], SCHEMA)
    assert error is not None or len(found) == len(SENT)


@given(st.integers(0, len(BODY) - 1))
def test_the_rest_of_a_stream_that_was_cut_off_is_asked_for_behind_the_last_row_that_arrived(at: int) -> None:
    first, _ = read(BODY[:at])
    behind = numbers_of(first)[-1] if first else 0
    rest = [batch.filter(pc.greater(batch.column(SEQ_COLUMN), behind)) for batch in SENT]
    second, error = read(b"".join(encode(SCHEMA, rest)), behind=behind)
    assert error is None
    assert numbers_of(first) + numbers_of(second) == NUMBERS


@pytest.mark.parametrize("numbers", [[[3, 2]], [[1, 1]], [[1, 2], [2, 3]], [[5], [4]]])
def test_rows_that_are_not_in_order_are_refused(numbers: list[list[int]]) -> None:
    _, error = read(b"".join(encode(SCHEMA, batches(numbers))))
    assert error is not None and "order" in error.message


def test_rows_that_were_asked_for_already_are_refused() -> None:
    _, error = read(BODY, behind=5)
    assert error is not None and "order" in error.message


def test_a_body_that_is_no_stream_is_refused_in_words() -> None:
    _, error = read(b'{"detail": "not what you think"}')
    assert error is not None and error.retryable
