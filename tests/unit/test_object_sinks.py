"""Names, bytes and options of the sinks that keep objects; and which kinds of sinks there are."""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import itertools
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.core.errors import ConfigError, UsageError
from strandline.core.partition import encode_partition
from strandline.core.types import SEQ_COLUMN, SEQ_MAX, Seq, SeqRange
from strandline.deliver import sink_kinds
from strandline.deliver.sink import Address, Option, SinkContext, SinkKind
from strandline.deliver.sinks.blobs import decode, names
from strandline.deliver.sinks.blobs.encode import ObjectFormat, choose_format, encode, identity_of
from tests.campaign import scaled
from tests.sinks import whole_ranges

ADDRESS = Address("lake-1", "sink-1", 1, "shop.orders", "")
ROWS = SeqRange(Seq(1), Seq(100))
FORMATS = [
    *(ObjectFormat("parquet", c) for c in ("zstd", "snappy", "gzip", "none")),
    *(ObjectFormat(f, c) for f in ("jsonl", "csv") for c in ("none", "gz", "zst")),
]


# --- names -----------------------------------------------------------------------------------------------------------

anything = st.none() | st.text(max_size=20) | st.sampled_from(["x" * 250, "x" * 251, "/" * 90, "~", "é" * 70])


@settings(max_examples=scaled(60, 1000), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["k", "K", "a/b"]), anything), min_size=1, max_size=4),
       st.lists(st.tuples(st.sampled_from(["k", "K", "a/b"]), anything), min_size=1, max_size=4))  # fmt: skip
def test_two_partitions_never_share_a_folder(a: list[tuple[str, str | None]], b: list[tuple[str, str | None]]) -> None:
    first, second = encode_partition(a), encode_partition(b)
    folders = names.partition_folder(first), names.partition_folder(second)
    assert (folders[0] == folders[1]) == (first == second)
    for folder in folders:
        assert folder.isascii() and len(folder) <= 600 and folder != names.partition_folder("")
        assert all(len(part) <= 200 and part not in ("", ".", "..", "_marks", "_tmp") for part in folder.split("/"))


def test_a_partition_of_many_long_values_still_fits_into_a_key() -> None:
    columns = [f"c{n}" for n in range(9)]
    partitions = [encode_partition([(c, "x" * 150 + last) for c in columns]) for last in "ab"]
    folders = {names.partition_folder(p) for p in partitions}
    assert len(folders) == 2 and all(len(f) <= 200 and "/" not in f for f in folders)


def test_a_lane_lies_where_its_generation_dataset_and_partition_say() -> None:
    assert names.lane_folder(ADDRESS) == "shop.orders/all"
    assert names.lane_folder(replace(ADDRESS, partition="k=v")) == "shop.orders/k=v"
    assert names.lane_folder(replace(ADDRESS, generation=3, partition="k=~")) == "generation=3/shop.orders/k=~"
    assert names.lane_folder(replace(ADDRESS, dataset="a/b.c=d")) == "a%2Fb.c%3Dd/all"


@given(st.integers(1, SEQ_MAX), st.integers(1, SEQ_MAX), st.sampled_from(names.EXTENSIONS))
def test_object_names_tell_their_range_and_sort_by_it(a: int, b: int, extension: str) -> None:
    rows = SeqRange(Seq(min(a, b)), Seq(max(a, b)))
    name = names.object_name(rows, extension)
    assert names.object_range(name) == rows and names.extension_of(name) == extension
    assert (
        names.object_name(SeqRange(Seq(a), SEQ_MAX), "csv") < names.object_name(SeqRange(Seq(b), SEQ_MAX), "csv")
    ) == (a < b)
    assert names.parse_watermark_name(names.watermark_name(Seq(a))) == a


@pytest.mark.parametrize("name", [
    "", "1-2.parquet", f"{1:019d}-{2:019d}", f"{1:019d}-{2:019d}.tmp", f"{2:019d}-{1:019d}.csv",
    f"{0:019d}-{1:019d}.csv", f"{1:019d}-{2:019d}.csv\n",
    f"x{1:019d}-{2:019d}.csv", f"{1:019d}-{2:019d}.parquet.gz", f"{1:020d}-{2:019d}.csv",
    "٠" * 18 + "١-" + f"{2:019d}.csv", f"{1:019d}-9999999999999999999.csv",
])  # fmt: skip
def test_names_that_are_almost_ours_are_not(name: str) -> None:
    assert names.object_range(name) is None


def test_places_overlap_when_one_lies_inside_the_other() -> None:
    here = names.file_destination("/data/out", "a.b")
    assert here == "file:///data/out/a.b"
    for other in (here, "file:///data", "file:///data/out/a.b/c", "file:///"):
        assert names.overlaps(here, other) and names.overlaps(other, here)
    for other in ("file:///data/out/a.bc", "file:///data/other", "s3://data/out/a.b@aws", "postgresql://data/out"):
        assert not names.overlaps(here, other) and not names.overlaps(other, here)
    bucket = names.s3_destination("b", "p", "a.b", "http://Host:1/")
    assert bucket == "s3://b/p/a.b@host:1"
    assert names.overlaps(bucket, names.place_of("s3://b/p/", "http://host:1"))
    assert names.overlaps(bucket, names.place_of("s3://b", "http://host:1"))
    assert not names.overlaps(bucket, names.place_of("s3://b/p", None))
    assert not names.overlaps(bucket, names.place_of("s3://b/q", "http://host:1"))


# --- bytes -----------------------------------------------------------------------------------------------------------

COLUMNS: dict[str, Any] = {
    SEQ_COLUMN: pa.array(range(1, 7), pa.int64()),
    "bool": pa.array([True, False, None, True, False, None]),
    "byte": pa.array([-128, 127, None, 0, 1, 2], pa.int8()),
    "short": pa.array([-(2**15), 2**15 - 1, None, 0, 1, 2], pa.int16()),
    "int": pa.array([-(2**31), 2**31 - 1, None, 0, 1, 2], pa.int32()),
    "long": pa.array([-(2**63), 2**63 - 1, None, 0, 1, 2], pa.int64()),
    "float": pa.array([float("nan"), float("inf"), None, -0.0, 1.5, 3.4e38], pa.float32()),
    "double": pa.array([float("nan"), float("-inf"), None, -0.0, 5e-324, 1e308]),
    "decimal": pa.array([Decimal("9" * 28 + "." + "9" * 10), Decimal(0), None, Decimal(-1), None, None],
                        pa.decimal128(38, 10)),
    "small_decimal": pa.array([Decimal("1.25"), None, None, Decimal("-9.99"), None, None], pa.decimal128(4, 2)),
    "date": pa.array([date(1, 1, 1), date(9999, 12, 31), None, date(1970, 1, 1), date(1969, 12, 31), None]),
    "timestamp": pa.array([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), *[None] * 4],
                          pa.timestamp("us")),
    "timestamptz": pa.array([datetime(1583, 1, 1, tzinfo=UTC), *[None] * 5], pa.timestamp("us", "UTC")),
    "string": pa.array(["", "é\u2028\n", None, "x" * 5000, "\0", "日本"]),
    "large_string": pa.array(["", "a", None, "b", "c", "d"], pa.large_string()),
    "binary": pa.array([b"", b"\xff\x00", None, b"x", b"y", b"z"]),
    "fixed": pa.array([b"ab", None, b"cd", b"\0\0", None, b"zz"], pa.binary(2)),
    "list": pa.array([[], [1, None], None, [2], [3, 4], []], pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "b": None}, None, {"a": None, "b": "x"}, {"a": 2, "b": ""}, None, None],
                       pa.struct([("a", pa.int64()), ("b", pa.string())])),
    "map": pa.array([[("k", 1)], [], None, [("a", None), ("b", 2)], None, []], pa.map_(pa.string(), pa.int32())),
    "nested": pa.array([[{"m": [("k", [1.0])]}], None, [], [None], [{"m": None}], [{"m": []}]],
                       pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.float64())))]))),
    "nothing": pa.nulls(6),
}  # fmt: skip
TYPES = pa.table(COLUMNS)


def chunked(table: pa.Table, *cuts: int) -> pa.Table:
    """The same rows in other pieces, each in memory of its own or as a slice of the whole."""
    bounds = [0, *cuts, table.num_rows]
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(bounds)]
    copied = [p.take(list(range(p.num_rows))) if n % 2 else p for n, p in enumerate(pieces)]
    return pa.concat_tables([*copied, table.slice(0, 0)])


def lines(count: int) -> pa.Table:
    return pa.table(
        {SEQ_COLUMN: pa.array(range(count), pa.int64()), "line": [f'{n},"a, ""é""\n{n % 7}"' for n in range(count)]}
    )


def written(table: pa.Table, how: ObjectFormat, header: tuple[str, ...] = ("n", "text")) -> bytes:
    out = io.BytesIO()
    told = encode(table, how, header, identity_of(ADDRESS, ROWS), out)
    assert (told.count, told.size) == (table.num_rows, len(out.getvalue()))
    return out.getvalue()


def test_every_type_comes_back_from_parquet_as_it_was() -> None:
    back = pq.read_table(io.BytesIO(written(TYPES, FORMATS[0])))
    assert back.schema.remove_metadata().equals(TYPES.schema)
    for name in TYPES.column_names:
        if name in ("float", "double"):
            ours, theirs = (
                t.column(name).combine_chunks().to_numpy(zero_copy_only=False).tobytes() for t in (TYPES, back)
            )
            assert ours == theirs
        else:
            assert back.column(name).equals(TYPES.column(name)), name


@settings(max_examples=60, deadline=None)
@given(whole_ranges.rows, st.sampled_from(FORMATS[:4]))
def test_parquet_holds_every_value_of_every_type(values: list[tuple[Any, ...]], how: ObjectFormat) -> None:
    found = pq.read_table(io.BytesIO(written(whole_ranges.as_table(values), how)))
    assert whole_ranges.is_read_back(found, values)


def test_the_same_rows_are_the_same_bytes_however_they_are_cut() -> None:
    many = pa.concat_tables([TYPES] * 50)
    for how in FORMATS:
        table = many if how.name == "parquet" else lines(300)
        first = written(table.combine_chunks(), how)
        assert written(chunked(table, 1, 2, 77, 200), how) == first
        assert written(chunked(table, 150).replace_schema_metadata({"spark": "says"}), how) == first


def test_pages_do_not_end_where_pieces_of_a_table_end() -> None:
    texts = pa.array([f"{n * 7919 % 100_003:06d}" * 20 for n in range(20_000)])
    table = pa.table({SEQ_COLUMN: pa.array(range(20_000), pa.int64()), "text": texts})
    first = written(table, FORMATS[0])
    assert written(chunked(table, 100, 1500, 7777, 19_999), FORMATS[0]) == first


def test_no_time_gets_into_what_is_compressed() -> None:
    assert written(lines(3), ObjectFormat("jsonl", "gz"))[4:8] == bytes(4)


def test_lines_beyond_one_slice_are_the_same_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.deliver.sinks.blobs.encode._SLICE_ROWS", 64)
    table = lines(1000)
    plain = written(table, ObjectFormat("jsonl", "none"))
    assert plain == "".join(f"{line}\n" for line in table.column("line").to_pylist()).encode()
    for compression in ("gz", "zst"):
        packed = written(table, ObjectFormat("jsonl", compression))
        assert packed == written(chunked(table, 3, 64, 500), ObjectFormat("jsonl", compression))
        undone = (
            gzip.decompress(packed)
            if compression == "gz"
            else zstandard.ZstdDecompressor().stream_reader(packed).read()
        )
        assert undone == plain


def test_other_rows_are_other_bytes() -> None:
    for how in FORMATS:
        assert len({written(lines(n), how) for n in (10, 11)}) == 2


def test_parquet_says_which_chunk_it_is() -> None:
    body = written(TYPES, FORMATS[0])
    said = pq.read_metadata(io.BytesIO(body)).metadata
    assert {k.decode(): v.decode() for k, v in said.items() if k.startswith(b"strandline.")} == {
        "strandline.lake": "lake-1", "strandline.sink": "sink-1", "strandline.generation": "1", "strandline.rows": "6",
        "strandline.dataset": "shop.orders", "strandline.partition": "", "strandline.range": "1-100",
    }  # fmt: skip


@pytest.mark.parametrize("how", FORMATS, ids=lambda f: f"{f.name}-{f.compression}")
def test_records_are_counted_as_they_were_written(how: ObjectFormat) -> None:
    table = TYPES if how.name == "parquet" else lines(500)
    if how.name == "jsonl":
        table = pa.table({SEQ_COLUMN: table.column(SEQ_COLUMN), "line": [f'{{"n":{n}}}' for n in range(500)]})
    body = written(table, how, ('a"b', "c,d"))
    name = names.object_name(ROWS, how.extension)
    seen = decode.inspect(io.BytesIO(body), name, ROWS, identity_of(ADDRESS, ROWS))
    assert (seen.count, seen.problem) == (table.num_rows, None)
    assert decode.count_rows(io.BytesIO(body), name) == table.num_rows


def test_csv_begins_with_the_names_of_its_columns() -> None:
    body = written(lines(1), ObjectFormat("csv", "none"), (SEQ_COLUMN, 'a "b"', "c,d", "é"))
    assert body.decode() == f'{SEQ_COLUMN},"a ""b""","c,d",é\n0,"a, ""é""\n0"\n'


def test_a_line_that_is_null_is_not_written_as_an_empty_one() -> None:
    with pytest.raises(ValueError, match="null"):
        written(pa.table({SEQ_COLUMN: [1, 2], "line": ["a", None]}), ObjectFormat("jsonl", "none"))


# --- options ---------------------------------------------------------------------------------------------------------


def opened(kind: str, **options: str) -> Any:
    found = sink_kinds.find_kind(kind)
    return found.open(SinkContext(Path("/home/lake"), "shop.orders", 1, sink_kinds.resolve(found, options)))


def test_a_kind_that_there_is_not_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="tape") as told:
        sink_kinds.find_kind("tape")
    assert told.value.hint is not None and "files, forward, iceberg, postgres, s3" in told.value.hint


def test_a_package_brings_a_kind_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.metadata.EntryPoint("tape", f"{__name__}:TAPE", "strandline.sinks")
    monkeypatch.setattr(importlib.import_module(found.module), "TAPE", TAPE, raising=False)

    def entry_points(*, group: str, name: str | None = None) -> importlib.metadata.EntryPoints:
        assert group == "strandline.sinks"
        return importlib.metadata.EntryPoints([found] if name in (None, "tape") else [])

    monkeypatch.setattr(sink_kinds, "entry_points", entry_points)
    assert sink_kinds.find_kind("tape").options == TAPE.options
    assert sink_kinds.kind_names() == ["files", "forward", "iceberg", "postgres", "s3", "tape"]


def _no_tape(_: SinkContext) -> Any:
    raise UsageError("there is no tape")


TAPE = SinkKind((Option("reel", "Which one."),), _no_tape)


def test_options_are_checked_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = sink_kinds.find_kind("s3")
    with pytest.raises(UsageError, match="has no option speed") as told:
        sink_kinds.check_options(s3, {"url": "s3://b", "speed": "fast"})
    assert told.value.hint is not None and "url (required), endpoint" in told.value.hint
    with pytest.raises(UsageError, match="needs the option url"):
        sink_kinds.check_options(s3, {})
    for literal in ("AKIA123", "env:"):
        with pytest.raises(UsageError, match="secret_key is a secret") as told:
            sink_kinds.check_options(s3, {"url": "s3://b", "secret_key": literal})
        assert "AKIA123" not in f"{told.value}{told.value.hint}"
    given = {"url": "s3://b", "access_key": "env:TEST_KEY", "secret_key": "env:TEST_SECRET"}
    monkeypatch.delenv("TEST_KEY", raising=False)
    with pytest.raises(ConfigError, match="TEST_KEY is not set"):
        sink_kinds.resolve(s3, given)
    monkeypatch.setenv("TEST_KEY", "k")
    monkeypatch.setenv("TEST_SECRET", "s")
    resolved = sink_kinds.resolve(s3, given)
    assert resolved == {"url": "s3://b", "access_key": "k", "secret_key": "s", "format": "parquet",
                        "multipart_bytes": str(32 << 20)}  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "words"), [
    ("files", {"path": ""}, "path is empty"),
    ("files", {"path": "s3://b/p"}, "is not"),
    ("files", {"path": "out/generation=2"}, "generation=N"),
    ("files", {"path": "o", "format": "orc"}, "format cannot be 'orc'"),
    ("files", {"path": "o", "compression": "gz"}, "compression of parquet cannot be 'gz'"),
    ("files", {"path": "o", "format": "csv", "compression": "zstd"}, "compression of csv cannot be 'zstd'"),
    ("s3", {"url": "https://b"}, "not the address of a bucket"),
    ("s3", {"url": "s3://"}, "not the address of a bucket"),
    ("s3", {"url": "s3://b/a/../c"}, r"`\.\.`"),
    ("s3", {"url": "s3://b/generation=7/c"}, "generation=N"),
    ("s3", {"url": "s3://b", "endpoint": "host:1"}, "endpoint is not"),
    ("s3", {"url": "s3://b", "endpoint": "http://me:pass@host"}, "more than an address"),
    ("s3", {"url": "s3://b", "access_key": "env:HOME"}, "go together"),
    ("s3", {"url": "s3://b", "multipart_bytes": "1"}, "multipart_bytes cannot be 1"),
])  # fmt: skip
def test_values_that_cannot_be_are_refused(kind: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as told:
        opened(kind, **options)
    assert "pass@" not in f"{told.value}{told.value.hint}"


def test_a_destination_is_one_text_however_it_is_written() -> None:
    here = "file:///home/lake/out/shop.orders"
    for path in ("out", "./out/", "/home/lake/out", "file:///home/lake/out", "x/../out"):
        assert opened("files", path=path).destination == here
    there = "s3://b/p/q/shop.orders@host:9000"
    for url, endpoint in (("s3://b/p/q", "http://host:9000"), ("s3://b/p/q/", "http://HOST:9000/")):
        assert opened("s3", url=url, endpoint=endpoint).destination == there
    assert opened("s3", url="s3://b").destination == "s3://b/shop.orders@aws"


def test_what_is_chosen_is_what_parcels_hold_and_objects_are_called() -> None:
    chosen = [choose_format("parquet", None), choose_format("jsonl", None), choose_format("csv", "zst")]
    assert [f.extension for f in chosen] == ["parquet", "jsonl", "csv.zst"]
    assert {f.extension for f in FORMATS} == set(names.EXTENSIONS)
    assert [opened("files", path="o", format=f).form for f in ("parquet", "jsonl", "csv")] == ["rows", "jsonl", "csv"]


def test_a_sink_never_shows_what_it_was_given_as_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "very-hidden")
    sink = opened("s3", url="s3://b", access_key="env:TEST_KEY", secret_key="env:TEST_KEY")
    sink.prepare([])
    for thing in (sink, sink.sender("t"), sink.inspector(), sink.destination):
        assert "very-hidden" not in repr(thing)
