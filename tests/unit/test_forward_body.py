"""Bodies: the same rows are the same bytes, whatever they came in; and they say what they hold."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.core.errors import UsageError
from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import Address, ChunkRows, Landed
from strandline.deliver.sinks.forward.body import BodyFormat, choose_body_format, encode_body, rehearse
from tests.sinks import whole_ranges

ADDRESS = Address("lake", "instance", 1, "shop.orders", "")
FORMATS = [BodyFormat(f, c) for f in ("jsonl", "arrow") for c in ("zstd", "gzip", "none")]

words = st.none() | st.text(max_size=12)
row = st.tuples(
    words,
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.booleans(),
    st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
    st.none() | st.fixed_dictionaries({"a": words, "b": st.none() | st.floats(allow_nan=False)}),
)
KINDS: list[tuple[str, Any]] = [
    ("text", pa.string()),
    ("number", pa.int32()),
    ("flag", pa.bool_()),
    ("list", pa.list_(pa.int64())),
    ("pair", pa.struct([("a", pa.string()), ("b", pa.float64())])),
]


def parcel(table: pa.Table) -> ChunkRows:
    return ChunkRows(ADDRESS, SeqRange(Seq(1), Seq(10_000)), table)


def numbered(columns: dict[str, Any]) -> pa.Table:
    count = len(next(iter(columns.values())))
    return pa.table({"_ingest_seq": pa.array(range(1, count + 1), pa.int64()), **columns})


def as_rows(values: list[tuple[Any, ...]]) -> pa.Table:
    return numbered({name: pa.array([v[n] for v in values], kind) for n, (name, kind) in enumerate(KINDS)})


def as_lines(values: list[tuple[Any, ...]]) -> pa.Table:
    return numbered({"line": pa.array([json.dumps(v) for v in values])})


def in_pieces(table: pa.Table, cuts: list[int]) -> pa.Table:
    edges = sorted({0, table.num_rows, *(c % (table.num_rows + 1) for c in cuts)})
    parts = [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    return pa.concat_tables([part for n, part in enumerate(parts) if n or part.num_rows])


def unpacked(content: bytes, compression: str) -> bytes:
    match compression:
        case "zstd":
            return zstandard.ZstdDecompressor().decompress(content)
        case "gzip":
            return gzip.decompress(content)
    return content


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=40), st.lists(st.integers(0, 100), max_size=5), st.sampled_from(FORMATS))
def test_the_same_rows_are_the_same_bytes_whatever_the_pieces_are(
    values: list[tuple[Any, ...]], cuts: list[int], how: BodyFormat
) -> None:
    whole = as_rows(values) if how.name == "arrow" else as_lines(values)
    pieces = in_pieces(whole, cuts)
    inside = pa.concat_tables([whole.slice(0, 0), whole, whole]).slice(0, whole.num_rows)
    bodies = {encode_body(parcel(t), how).content for t in (whole, pieces, inside, whole.combine_chunks())}
    assert len(bodies) == 1
    plain = unpacked(bodies.pop(), how.compression)
    if how.name == "arrow":
        assert pa.ipc.open_stream(plain).read_all().equals(whole)
    else:
        assert plain == "".join(f"{json.dumps(v)}\n" for v in values).encode()


@settings(max_examples=60, deadline=None)
@given(whole_ranges.rows, st.sampled_from([f for f in FORMATS if f.name == "arrow"]))
def test_arrow_holds_every_value_of_every_type(values: list[tuple[Any, ...]], how: BodyFormat) -> None:
    content = unpacked(encode_body(parcel(whole_ranges.as_table(values)), how).content, how.compression)
    assert whole_ranges.is_read_back(pa.ipc.open_stream(content).read_all(), values)


def test_what_lies_under_a_null_or_was_noted_about_a_column_does_not_change_the_bytes() -> None:
    validity = pa.py_buffer(bytes([0b0101]))

    def column(hidden: int) -> pa.Array[Any]:
        values = np.array([1, hidden, 3, hidden], np.int64)
        return pa.Array.from_buffers(pa.int64(), 4, [validity, pa.py_buffer(values.tobytes())])

    how = BodyFormat("arrow", "none")
    clean, garbage = (numbered({"x": column(n)}) for n in (0, 4711))
    assert encode_body(parcel(clean), how) == encode_body(parcel(garbage), how)
    noted = pa.schema(
        [
            pa.field("_ingest_seq", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "1"}),
            pa.field("x", pa.int64()),
        ],
        metadata={"org.apache.spark": "x"},
    )
    assert encode_body(parcel(clean.cast(noted)), how) == encode_body(parcel(clean), how)


@pytest.mark.parametrize("how", FORMATS, ids=str)
def test_a_body_is_one_whole_thing_that_says_its_own_digest(how: BodyFormat) -> None:
    table = as_rows([("a", 1, True, [1], None)] * 100) if how.name == "arrow" else as_lines([("a",)] * 100)
    body = encode_body(parcel(table), how)
    assert (body.rows, body.digest) == (100, f"sha256:{hashlib.sha256(body.content).hexdigest()}")
    assert rehearse(how, parcel(table)) == Landed(100, body.recorded, len(body.content))
    if how.name == "arrow":
        batches = list(pa.ipc.open_stream(unpacked(body.content, how.compression)))
        assert [b.num_rows for b in batches] == [100]


@pytest.mark.parametrize("numbers", [[], [3, 2], [2, 2], [0, 1], [9_999, 10_001]])
def test_a_chunk_that_is_not_what_its_range_says_never_becomes_a_body(numbers: list[int]) -> None:
    table = pa.table(
        {"_ingest_seq": pa.array(numbers, pa.int64()), "line": pa.array(["{}"] * len(numbers), pa.string())}
    )
    with pytest.raises(ValueError, match=r"range|chunk"):
        encode_body(parcel(table), BodyFormat("jsonl", "none"))


def test_formats_that_do_not_exist_are_refused() -> None:
    for name, compression in (("csv", "zstd"), ("jsonl", "lz4")):
        with pytest.raises(UsageError, match="cannot be"):
            choose_body_format(name, compression)
