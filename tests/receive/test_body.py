"""Bodies to rows: every type as Spark's to_json spells it, what does not fit by its line, and bombs by their limit."""

from __future__ import annotations

import base64
import gzip
import json
import math
import resource
import uuid
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from strandline.core import forward_protocol
from strandline.core.errors import BadRow
from strandline.iceberg.schema.columns import Column
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest.sources.body import read_json_lines
from strandline.receive.body.columns import arrow_schema, arrow_type
from strandline.receive.body.decompress import TooLarge, unpack
from strandline.receive.body.json_lines import whole_lines
from strandline.receive.body.parse import Packed, read_body
from tests.receive.conftest import arrow

MIB = 1 << 20
UUID = "12345678-1234-1234-1234-123456789abc"
INSTANT = datetime(2024, 11, 3, 5, 30, 0, 123456, UTC)
BIG = Decimal("9999999999999999999999999999.9999999999")


def _columns(*types: str) -> tuple[Column, ...]:
    return tuple(parse_columns([{"name": f"c{i}", "type": kind} for i, kind in enumerate(types)]))


def _read(body: bytes, columns: tuple[Column, ...], form: str = forward_protocol.JSON_LINES, **other: Any) -> pa.Table:
    packed = Packed(body, form, other.get("encoding", "identity"), other.get("numbers"))
    return read_body(packed, columns, other.get("bytes_max", 64 * MIB), read_json_lines)


def _value(kind: str, text: str) -> Any:
    [row] = _read(f'{{"c0": {text}}}\n'.encode(), _columns(kind)).to_pylist()
    return row["c0"]


def _b64(data: bytes) -> str:
    return json.dumps(base64.b64encode(data).decode())


SPELLED: list[tuple[str, str, Any]] = [
    ("boolean", "true", True),
    ("int", "-2147483648", -(2**31)),
    ("long", "9223372036854775807", 2**63 - 1),
    ("float", "1.4E-45", 1.401298464324817e-45),
    ("float", "3.4028235E38", 3.4028234663852886e38),
    ("double", "1.7976931348623157E308", 1.7976931348623157e308),
    ("double", '"Infinity"', math.inf),
    ("double", '"-Infinity"', -math.inf),
    ("decimal(38,10)", f'"{BIG}"', BIG),
    ("decimal(38,10)", "0.5", Decimal("0.5000000000")),
    ("decimal(38,10)", '"1E-10"', Decimal("0.0000000001")),
    ("decimal(9,2)", "12", Decimal("12.00")),
    ("date", '"0001-01-01"', date(1, 1, 1)),
    ("date", '"9999-12-31"', date(9999, 12, 31)),
    ("timestamp", '"2024-03-10T02:30:00.000001"', datetime(2024, 3, 10, 2, 30, 0, 1)),
    ("timestamptz", '"2024-11-03T05:30:00.123456Z"', INSTANT),
    ("timestamptz", '"2024-11-03T06:30:00.123456+01:00"', INSTANT),
    ("string", '"\\u0000ü𝄞\\n"', "\0ü𝄞\n"),
    ("uuid", f'"{UUID}"', UUID),
    ("fixed[4]", _b64(b"\xff\xfe\0\1"), b"\xff\xfe\0\1"),
    ("binary", _b64(bytes(range(256))), bytes(range(256))),
    ("binary", '""', b""),
    ("list<long>", "[1,null,3]", [1, None, 3]),
    ("list<list<string>>", '[[],null,["",null]]', [[], None, ["", None]]),
    ("list<decimal(5,2)>", '["1.50",2]', [Decimal("1.50"), Decimal("2.00")]),
    ("map<string,double>", '{"a":1.5,"":null}', [("a", 1.5), ("", None)]),
    ("map<long,string>", '{"7":"x"}', [(7, "x")]),
    ("map<timestamptz,date>", '{"2024-11-03T05:30:00.123456Z":"2024-01-01"}', [(INSTANT, date(2024, 1, 1))]),
    ("map<string,map<string,list<int>>>", '{"a":{"b":[null,1]}}', [("a", [("b", [None, 1])])]),
    (
        "struct<a:int,b:struct<c:timestamptz,d:list<decimal(5,2)>>>",
        '{"a":2,"b":{"c":"2024-11-03T05:30:00.123456Z","d":["1.50",null]}}',
        {"a": 2, "b": {"c": INSTANT, "d": [Decimal("1.50"), None]}},
    ),
    (
        "list<struct<m:map<string,date>,f:fixed[2],u:uuid>>",
        f'[null,{{"m":{{"k":"2024-01-01"}},"f":{_b64(b"ab")},"u":"{UUID}"}}]',
        [None, {"m": [("k", date(2024, 1, 1))], "f": b"ab", "u": UUID}],
    ),
]


@pytest.mark.parametrize(("kind", "text", "value"), SPELLED)
def test_every_type_is_read_as_our_sender_spells_it(kind: str, text: str, value: Any) -> None:
    assert _value(kind, text) == value
    assert _value(kind, "null") is None


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("date", "-5877641-06-23", -(2**31)),
        ("date", "-0043-03-15", -735160),
        ("date", "0000-02-29", -719469),
        ("date", "+12024-02-29", 3672207),
        ("date", "+5881580-07-11", 2**31 - 1),
        ("timestamp", "-290308-12-21T19:59:05.224192", -(2**63)),
        ("timestamp", "+294247-01-10T04:00:54.775807", 2**63 - 1),
        ("timestamptz", "-290308-12-21T19:59:05.224192Z", -(2**63)),
        ("timestamptz", "0001-01-01T00:00:00+01:00", -62135596800 * 10**6 - 3600 * 10**6),
        ("timestamptz", "+294247-01-10T05:00:54.775807+01:00", 2**63 - 1),
    ],
)
def test_dates_and_times_are_read_over_the_whole_range_of_their_type(kind: str, text: str, value: int) -> None:
    """Python's own end at the years 1 and 9999."""
    plain = {"date": '"2024-01-01"', "timestamp": '"2024-01-01T00:00:00"', "timestamptz": '"2024-01-01T00:00:00Z"'}
    body = f'{{"c0":{plain[kind]}}}\n' * 99 + f'{{"c0":"{text}"}}\n' + '{"c0":null}\n'
    found = _read(body.encode(), _columns(kind)).column("c0").cast(pa.int32() if kind == "date" else pa.int64())
    assert found[99].as_py() == value and found[100].as_py() is None and found.null_count == 1


def test_nan_is_read_and_is_no_null() -> None:
    assert math.isnan(_value("double", '"NaN"')) and math.isnan(_value("float", '"NaN"'))


def test_rows_that_only_the_slow_path_reads_stand_at_their_place_among_the_others() -> None:
    columns = _columns("double", "long")
    rows = [{"c0": "NaN" if n % 700 == 3 else n / 2, "c1": n} for n in range(5000)]
    found = _read("".join(json.dumps(r) + "\n" for r in rows).encode(), columns)
    assert found.column("c1").to_pylist() == list(range(5000))
    assert [n for n, v in enumerate(found.column("c0").to_pylist()) if math.isnan(v)] == list(range(3, 5000, 700))


def test_what_is_read_has_the_same_schema_whichever_path_read_it() -> None:
    kinds = [kind for kind, _, _ in SPELLED]
    columns = _columns(*kinds)
    row = "{" + ",".join(f'"c{i}":{text}' for i, (_, text, _) in enumerate(SPELLED)) + "}\n"
    slow = _read(row.encode(), columns)
    fast = _read(b"{}\n" * 50, columns)
    assert slow.schema == fast.schema == arrow_schema(columns)
    assert slow.num_rows == 1 and fast.num_rows == 50


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("uuid", '"nonsense"', "not a uuid"),
        ("fixed[4]", _b64(b"abc"), "4 bytes"),
        ("list<uuid>", f'["{UUID}","x"]', "not a uuid"),
        ("map<string,fixed[2]>", f'{{"a":{_b64(b"abc")}}}', "2 bytes"),
        ("struct<a:struct<u:uuid>>", '{"a":{"u":"x"}}', "c0.a.u"),
        ("int", "2147483648", "out of range"),
        ("int", "1.0", "is not an int"),
        ("decimal(3,1)", '"1000"', "does not fit"),
        ("decimal(3,1)", '"1.23"', "does not fit"),
        ("timestamp", '"2024-01-01T00:00:00Z"', "offset"),
        ("timestamp", '"2024-01-01T00:00:00.1234567"', "six digits"),
        ("date", '"2024-02-30"', "is not a date"),
        ("string", "5", "is not a string"),
        ("binary", '"a"', "base64"),
        ("list<int>", '{"a":1}', "is not a list"),
        ("map<string,int>", '{"a":1,"a":2}', "twice"),
        ("struct<a:int>", '{"b":1}', "unknown column"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(kind: str, text: str, why: str) -> None:
    body = f'{{"c0": null}}\n\n{{"c0": {text}}}\n'.encode()
    with pytest.raises(BadRow) as found:
        _read(body, _columns(kind))
    assert found.value.line == 3 and why in found.value.message and '"c0' in found.value.message


REQUIRED: tuple[Column, ...] = tuple(
    parse_columns(
        [
            {"name": "s", "type": {"type": "struct", "fields": [{"name": "a", "type": "int", "required": True}]}},
            {"name": "l", "type": {"type": "list", "element": "int", "element-required": True}},
            {"name": "m", "type": {"type": "map", "key": "string", "value": "int", "value-required": True}},
        ]
    )
)


@pytest.mark.parametrize("bad", ['{"s":{"a":null}}', '{"s":{}}', '{"l":[1,null]}', '{"m":{"k":null}}'])
def test_null_where_a_value_is_required_inside_is_found_in_both_forms(bad: str) -> None:
    good = '{"s":{"a":1},"l":[1],"m":{"k":1}}\n{"s":null,"l":null,"m":null}\n'
    assert _read(good.encode(), REQUIRED).num_rows == 2
    with pytest.raises(BadRow) as found:
        _read(f"{good}{bad}\n".encode(), REQUIRED)
    assert found.value.line == 3 and "required" in found.value.message
    row = json.loads(bad) | ({"m": [("k", None)]} if "m" in bad else {})
    table = pa.Table.from_pylist([{"l": [1], "m": [("k", 1)], "s": {"a": 1}}, row], arrow_schema(REQUIRED))
    with pytest.raises(BadRow) as found:
        _read(arrow(table), REQUIRED, forward_protocol.ARROW)
    assert found.value.line == 2 and "required" in found.value.message


def test_lines_may_end_anyhow_and_blank_ones_count() -> None:
    columns = _columns("int")
    body = b'\xef\xbb\xbf{"c0": 1}\r\n\r\n  {"c0": 2}  \n\n{"c0": 3}'
    assert _read(body, columns).column("c0").to_pylist() == [1, 2, 3]
    assert _read(b"", columns).num_rows == _read(b"\n\n", columns).num_rows == 0


# --- Arrow ---


def test_arrow_of_every_type_comes_back_as_it_is() -> None:
    kinds = [kind for kind, _, _ in SPELLED]
    columns = _columns(*kinds)
    table = pa.Table.from_pylist(
        [{f"c{i}": v for i, (_, _, v) in enumerate(SPELLED)}, {}], schema=arrow_schema(columns)
    )
    assert _read(arrow(table), columns, forward_protocol.ARROW).equals(table)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("long", pa.array([1, None], pa.uint8()), [1, None]),
        ("int", pa.array([1], pa.int64()), [1]),
        ("double", pa.array([1.5], pa.float32()), [1.5]),
        ("float", pa.array([0.5, math.inf, None], pa.float64()), [0.5, math.inf, None]),
        ("decimal(10,4)", pa.array([Decimal("1.50")], pa.decimal128(5, 2)), [Decimal("1.5000")]),
        ("decimal(5,2)", pa.array([Decimal("1.5000")], pa.decimal256(40, 4)), [Decimal("1.50")]),
        ("date", pa.array([date(2024, 1, 1)], pa.date64()), [date(2024, 1, 1)]),
        ("timestamptz", pa.array([INSTANT], pa.timestamp("ns", "Asia/Tokyo")), [INSTANT]),
        ("timestamp", pa.array([datetime(2024, 1, 1)], pa.timestamp("s")), [datetime(2024, 1, 1)]),
        ("string", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("fixed[2]", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("uuid", pa.array([uuid.UUID(UUID).bytes, None], pa.uuid()), [UUID, None]),
        ("uuid", pa.array([uuid.UUID(UUID).bytes], pa.binary(16)), [UUID]),
        ("list<long>", pa.array([[1, None], None, []], pa.large_list(pa.int8())), [[1, None], None, []]),
        ("list<uuid>", pa.array([[uuid.UUID(UUID).bytes]], pa.list_(pa.binary(16))), [[UUID]]),
        ("map<string,long>", pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())), [[("a", 1)], None]),
        (
            "struct<a:long,b:string>",
            pa.array([{"a": 1}, None], pa.struct({"a": pa.int32()})),
            [{"a": 1, "b": None}, None],
        ),
        ("struct<b:string,a:int>", pa.array([{"a": 1, "b": "x"}]), [{"b": "x", "a": 1}]),
        ("string", pa.nulls(2), [None, None]),
    ],
)
def test_arrow_is_cast_where_nothing_is_lost(kind: str, given: Any, expected: list[Any]) -> None:
    found = _read(arrow(pa.table({"c0": given})), _columns(kind), forward_protocol.ARROW)
    assert found.column("c0").type == arrow_type(_columns(kind)[0].type)
    assert found.column("c0").to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "given", "line"),
    [
        ("int", pa.array([1, 2**31], pa.int64()), 2),
        ("float", pa.array([0.5, 0.1], pa.float64()), 2),
        ("decimal(5,2)", pa.array([Decimal("1.50"), Decimal("1.55555")]), 2),
        ("timestamp", pa.array([10**9, 10**9 + 1], pa.timestamp("ns")), 2),
        ("fixed[3]", pa.array([b"abc", b"ab"]), 2),
        ("uuid", pa.array([UUID, "x"]), 2),
        ("list<int>", pa.array([[1], None, [1, 2**40]]), 3),
        ("struct<a:int>", pa.array([{"a": 1}, {"a": 2**40}]), 2),
        ("int", pa.array(["1"]), None),
        ("string", pa.array([1]), None),
        ("timestamptz", pa.array([datetime(2024, 1, 1)]), None),
        ("timestamp", pa.array([INSTANT]), None),
        ("struct<a:int>", pa.array([{"b": 1}]), None),
        ("string", pa.array(["a"]).dictionary_encode(), None),
        ("string", pa.array(["a"], pa.string_view()), None),
    ],
)
def test_arrow_that_would_lose_something_is_refused_with_its_row(kind: str, given: Any, line: int | None) -> None:
    with pytest.raises(BadRow) as found:
        _read(arrow(pa.table({"c0": given})), _columns(kind), forward_protocol.ARROW)
    assert found.value.line == line


def test_columns_of_arrow_are_found_by_name_and_must_be_known() -> None:
    columns = tuple(parse_columns([{"name": "a", "type": "int", "required": True}, {"name": "b", "type": "int"}]))
    assert _read(arrow(pa.table({"b": [2], "a": [1]})), columns, forward_protocol.ARROW).to_pylist() == [
        {"a": 1, "b": 2}
    ]
    assert _read(arrow(pa.table({"a": [1]})), columns, forward_protocol.ARROW).to_pylist() == [{"a": 1, "b": None}]
    for bad in (pa.table({"b": [2]}), pa.table({"a": [1], "c": [1]}), pa.table({"a": pa.array([1, None])})):
        with pytest.raises(BadRow):
            _read(arrow(bad), columns, forward_protocol.ARROW)
    with pytest.raises(BadRow, match="Strandline's own"):
        _read(arrow(pa.table({"a": [1], "_ingest_seq": [1]})), columns, forward_protocol.ARROW)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([1])], names=["a", "a"])
    with pytest.raises(BadRow, match="twice"):
        _read(arrow(twice), columns, forward_protocol.ARROW)


def test_many_batches_are_one_body_and_the_row_is_counted_over_them() -> None:
    out = pa.BufferOutputStream()
    batches = [pa.record_batch({"c0": pa.array([1, 2], pa.int64())}), pa.record_batch({"c0": pa.array([3, 2**40])})]
    with pa.ipc.new_stream(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body = out.getvalue().to_pybytes()
    assert _read(body, _columns("long"), forward_protocol.ARROW).num_rows == 4
    with pytest.raises(BadRow) as found:
        _read(body, _columns("int"), forward_protocol.ARROW)
    assert found.value.line == 4


@pytest.mark.parametrize("seed", range(40))
def test_damaged_arrow_is_refused_or_read_and_never_worse(seed: int) -> None:
    body = bytearray(arrow(pa.table({"c0": ["a", "bc", None], "c1": [[1], [], None]})))
    random = np.random.default_rng(seed)
    for at in random.integers(0, len(body), 1 + seed % 8):
        body[at] = random.integers(0, 256)
    columns = _columns("string", "list<long>")
    try:
        _read(bytes(body), columns, forward_protocol.ARROW).validate(full=True)
    except (BadRow, TooLarge):
        pass
    for cut in random.integers(0, len(body), 5):
        try:
            _read(bytes(body[:cut]), columns, forward_protocol.ARROW)
        except (BadRow, TooLarge):
            pass


# --- too large ---


def test_what_is_cut_or_damaged_or_followed_by_garbage_is_told() -> None:
    for encoding, packed in (("gzip", gzip.compress(b"x" * 5000)), ("zstd", zstandard.compress(b"x" * 5000))):
        assert unpack(packed, encoding, 5000) == b"x" * 5000
        assert unpack(packed + packed, encoding, 10_000) == b"x" * 10_000
        for bad in (packed[:-3], packed[:5], b"plain text", packed + b"garbage"):
            with pytest.raises(BadRow):
                unpack(bad, encoding, 5000)
        with pytest.raises(TooLarge):
            unpack(packed, encoding, 4999)
    with pytest.raises(TooLarge):
        unpack(b"x" * 5001, "identity", 5000)


def _bomb(encoding: str, size: int) -> bytes:
    """`size` bytes of zeros, made without ever holding them."""
    packer = zstandard.ZstdCompressor().compressobj() if encoding == "zstd" else zlib.compressobj(wbits=31)
    piece = bytes(8 * MIB)
    return b"".join([*(packer.compress(piece) for _ in range(size // len(piece))), packer.flush()])


@pytest.mark.parametrize(("encoding", "size"), [("zstd", 8 << 30), ("gzip", 256 << 20)])
def test_a_bomb_of_gigabytes_never_gets_into_memory(encoding: str, size: int) -> None:
    bomb = _bomb(encoding, size)
    assert len(bomb) < 2 * MIB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLarge):
        unpack(bomb, encoding, 16 * MIB)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 96 * 1024


def test_arrow_that_stands_for_more_than_it_is_is_refused_unread() -> None:
    columns = _columns("string", "long")
    zeros = pa.table({"c1": pa.array(np.zeros(1_000_000, np.int64))})
    for compression in ("zstd", "lz4"):
        with pytest.raises(BadRow, match="compressed"):
            _read(arrow(zeros, compression=compression), columns, forward_protocol.ARROW)
    # A column of nulls takes no bytes, however many rows it has.
    nulls = pa.table({"c0": pa.Array.from_buffers(pa.null(), 2**31 - 1, [None])})
    with pytest.raises(TooLarge):
        _read(arrow(nulls), columns, forward_protocol.ARROW)
    with pytest.raises(TooLarge):
        _read(arrow(zeros), columns, forward_protocol.ARROW, bytes_max=MIB)


def test_rows_of_nothing_but_braces_take_room_too() -> None:
    wide = _columns(*["double"] * 200)
    with pytest.raises(TooLarge):
        _read(b"{}\n" * 100_000, wide)
    assert _read(b"{}\n" * 1000, wide).num_rows == 1000


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"d\n", b"\n\ne"]), max_size=30), st.integers(1, 12))
def test_slices_are_whole_lines_and_together_the_body(pieces: list[bytes], slice_bytes: int) -> None:
    slices = list(whole_lines(pieces, slice_bytes, 100))
    assert b"".join(slices) == b"".join(pieces)
    assert all(data.endswith(b"\n") for data in slices[:-1])
    assert all(len(data) <= slice_bytes or data[:-1].rfind(b"\n", 0, slice_bytes) < 0 for data in slices)


@given(st.lists(st.binary(min_size=1, max_size=5), max_size=10))
def test_a_small_body_is_read_at_once_even_if_its_last_line_has_no_end(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert list(whole_lines(pieces, 100, 100)) == ([whole] if whole else [])


@given(st.lists(st.sampled_from([b"abc", b"a\n", b"\n"]), max_size=30), st.integers(1, 12), st.integers(1, 12))
def test_a_line_beyond_the_limit_is_refused(pieces: list[bytes], slice_bytes: int, line_bytes_max: int) -> None:
    longest = max(map(len, b"".join(pieces).split(b"\n")))
    if longest > line_bytes_max + slice_bytes:
        with pytest.raises(TooLarge):
            list(whole_lines(pieces, slice_bytes, line_bytes_max))
    elif longest <= line_bytes_max:
        list(whole_lines(pieces, slice_bytes, line_bytes_max))
