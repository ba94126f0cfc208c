"""Rows of a range over HTTP: each once and as they were sent, whatever happens on the way."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import FailedError, SegmentDamaged, StorageError
from strandline.receive.schema_adapt import SchemaAdapter
from strandline.replicate.segment_stream import encode, request_name
from strandline.replicate.transports import segment_fetch
from strandline.replicate.transports.http import PART_NUMBERS, PARTS_MAX, _FetchTask, part_size
from strandline.replicate.transports.segment_fetch import (
    LeaderAddress,
    WantedRange,
    column_ids,
    fetch_rows,
    fetch_schema,
    with_text_uuids,
)
from tests import loopback

SCHEMA = pa.schema([("_ingest_seq", pa.int64()), ("text", pa.string())])
STILL = 600.0  # seconds
NUMBERS = [n for n in range(1, 101) if n % 7]


class Leader:
    """Answers as a leader does that has these rows, except for what is planned to go wrong."""

    def __init__(self) -> None:
        self.asked: list[int] = []  # behind which number
        self.faults: list[Any] = []
        self.tokens: set[str | None] = set()
        self.over = threading.Event()  # nobody waits for an answer any more

    def body(self, lo: int, hi: int, behind: int) -> bytes:
        numbers = [n for n in NUMBERS if lo <= n <= hi and n > behind]
        batches = [
            pa.record_batch([some, [f"row {n}" for n in some]], schema=SCHEMA)
            for some in (numbers[i : i + 10] for i in range(0, len(numbers), 10))
        ]
        return b"".join(encode(SCHEMA, batches, request_name("d", lo, hi, behind, False)))


@dataclass
class Pace:
    """How an answer is sent: so many bytes at once, with a pause after each."""

    bytes_at_once: int
    pause_seconds: float

    def write(self, body: bytes, write: Callable[[bytes], object], over: threading.Event) -> None:
        with suppress(OSError):  # who asked has gone
            for at in range(0, len(body), self.bytes_at_once):
                write(body[at : at + self.bytes_at_once])
                over.wait(self.pause_seconds)


@contextmanager
def leading(leader: Leader) -> Iterator[LeaderAddress]:
    class Handler(loopback.Handler):
        def do_GET(self) -> None:
            asked = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
            leader.asked.append(int(asked["behind"]))
            leader.tokens.add(self.headers.get("Authorization"))
            fault = leader.faults.pop(0) if leader.faults else None
            body = leader.body(int(asked["lo"]), int(asked["hi"]), int(asked["behind"]))
            if isinstance(fault, int):
                self.answer(fault, b'{"detail": "not today"}')
                return
            self.send_response(200)
            body = fault if isinstance(fault, bytes) else body
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if isinstance(fault, Pace):
                fault.write(body, self.wfile.write, leader.over)
            else:
                self.wfile.write(fault(body) if callable(fault) else body)

    with loopback.serving(Handler) as port:
        try:
            yield LeaderAddress(f"http://127.0.0.1:{port}", "secret")
        finally:
            leader.over.set()


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(segment_fetch, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(segment_fetch, "BUSY_PAUSE_SECONDS_MAX", 0.01)
    return Leader()


def fetched(at: LeaderAddress, lo: int = 1, hi: int = 100) -> list[int]:
    return [n for b in fetch_rows(at, WantedRange("d", lo, hi)) for n in b.column("_ingest_seq").to_pylist()]


def test_every_row_of_the_range_comes_once_and_in_order(leader: Leader) -> None:
    with leading(leader) as at:
        assert fetched(at) == NUMBERS
        assert fetched(at, 20, 40) == [n for n in NUMBERS if 20 <= n <= 40]
        assert fetch_schema(at, WantedRange("d", 1, 100)) == SCHEMA
    assert leader.asked == [0, 19, 100] and leader.tokens == {"Bearer secret"}
    assert "secret" not in repr(at)


def cut(body: bytes) -> bytes:
    return body[: len(body) // 2]


def flipped(body: bytes) -> bytes:
    at = len(body) * 2 // 3
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


@pytest.mark.parametrize("fault", [cut, flipped])
def test_what_broke_or_changed_on_the_way_is_fetched_again_behind_the_last_proven_row(
    leader: Leader, fault: Any
) -> None:
    leader.faults = [fault, fault, 503, fault]
    with leading(leader) as at:
        assert fetched(at) == NUMBERS
    assert leader.asked[0] == 0 and sorted(leader.asked) == leader.asked and leader.asked[-1] > 0
    assert len(leader.asked) == 5


class Bit:
    """Changes one bit of a body, wherever that is in it."""

    def __init__(self, at: float, bit: int) -> None:
        self.at, self.mask = at, 1 << bit

    def __call__(self, body: bytes) -> bytes:
        place = int(self.at * len(body))
        return body[:place] + bytes([body[place] ^ self.mask]) + body[place + 1 :]


BITS = st.builds(Bit, st.floats(0, 1, exclude_max=True), st.integers(0, 7))


def test_no_changed_bit_is_ever_taken_for_a_column(leader: Leader) -> None:
    with leading(leader) as address:

        @given(BITS)
        def fetched_though(changed: Bit) -> None:
            leader.faults = [changed]
            assert fetch_schema(address, WantedRange("d", 1, 100)).equals(SCHEMA, check_metadata=True)

        fetched_though()


def test_an_answer_to_another_request_is_asked_for_again(leader: Leader) -> None:
    """As from a gateway that has mixed up two connections: proven, and still not what was asked for."""
    leader.faults = [leader.body(1, 100, 50), leader.body(1, 50, 0), leader.body(51, 100, 50)]
    with leading(leader) as at:
        assert fetched(at) == NUMBERS
    assert leader.asked == [0, 0, 0, 0]


def test_no_changed_bit_is_ever_taken_for_a_row(leader: Leader) -> None:
    with leading(leader) as address:

        @given(BITS)
        def fetched_though(changed: Bit) -> None:
            leader.faults = [changed]
            rows = [r for b in fetch_rows(address, WantedRange("d", 1, 100)) for r in b.to_pylist()]
            assert rows == [{"_ingest_seq": n, "text": f"row {n}"} for n in NUMBERS]

        fetched_though()


def test_a_leader_that_never_sends_it_whole_is_given_up(leader: Leader) -> None:
    leader.faults = [lambda body: body[:-9]] * 2 + [lambda body: body[:40]] * 20
    with leading(leader) as at, pytest.raises((SegmentDamaged, StorageError)):
        fetched(at)
    leader.faults = [503] * 20
    with leading(leader) as at, pytest.raises(StorageError, match="503"):
        fetched(at)


def test_a_leader_that_sends_to_others_meanwhile_is_waited_for(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    leader.faults = [429] * 20
    with leading(leader) as at:
        assert fetched(at) == NUMBERS
    monkeypatch.setattr(segment_fetch, "BUSY_SECONDS_MAX", 0.03)
    leader.faults = [429] * 20
    with leading(leader) as at, pytest.raises(StorageError, match="too many other segments"):
        fetched(at)


def test_an_answer_that_stands_still_is_given_up_and_asked_for_again(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last row that was proven before."""
    monkeypatch.setattr(segment_fetch, "SILENCE_SECONDS_MAX", 0.5)
    leader.faults = [Pace(len(leader.body(1, 100, 0)) * 2 // 3, STILL)]
    with leading(leader) as at:
        assert fetched(at) == NUMBERS
    assert leader.asked[0] == 0 and leader.asked[-1] > 0


def test_a_leader_that_stands_still_each_time_is_given_up(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_fetch, "SILENCE_SECONDS_MAX", 0.2)
    leader.faults = [Pace(1, STILL)] * 20
    with leading(leader) as at, pytest.raises(StorageError, match="does not answer"):
        fetched(at)
    assert len(leader.asked) == segment_fetch.ATTEMPTS_MAX


def test_an_answer_that_trickles_is_taken_however_long_it_takes(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for silence: a link may be slow. An answer of a machine that stalls is asked for again."""
    monkeypatch.setattr(segment_fetch, "SILENCE_SECONDS_MAX", 0.5)
    size = len(leader.body(1, 7, 0)) // 20 + 1
    leader.faults = [Pace(size, pause_seconds=0.05) for _ in range(20)]
    began = time.monotonic()
    with leading(leader) as at:
        assert fetched(at, 1, 7) == list(range(1, 7))
    assert time.monotonic() - began > 0.5


def with_ids(**columns: int) -> pa.Schema:
    ids = {name: {"PARQUET:field_id": str(id)} for name, id in columns.items()}
    return pa.schema([pa.field(name, pa.int64(), metadata=id) for name, id in ids.items()])


def test_a_name_that_another_column_has_by_now_is_another_column() -> None:
    before, swapped = with_ids(_ingest_seq=1, a=2, b=3), with_ids(_ingest_seq=1, b=2, a=3)
    assert column_ids(before) == column_ids(with_ids(_ingest_seq=1, b=3, a=2)) != column_ids(swapped)
    inside = [pa.schema([pa.field("s", pa.struct(list(of)))]) for of in (before, swapped)]
    assert column_ids(inside[0]) != column_ids(inside[1])

    def task(now: pa.Schema) -> pa.RecordBatch:
        fitting = SchemaAdapter(pa.schema([(name, pa.int64()) for name in before.names]))
        made = _FetchTask(LeaderAddress("http://leader"), WantedRange("d", 1, 1), column_ids(before), fitting, 1)
        return made._fit(pa.RecordBatch.from_pylist([dict(zip(now.names, (1, 2, 3), strict=True))], now))

    assert task(before).to_pylist() == [{"_ingest_seq": 1, "a": 2, "b": 3}]
    with pytest.raises(FailedError, match="changed just now"):
        task(swapped)


def test_what_the_leader_refuses_is_not_asked_for_again(leader: Leader) -> None:
    leader.faults = [409, 401]
    with leading(leader) as at:
        with pytest.raises(FailedError, match="not today"):
            fetched(at)
        with pytest.raises(FailedError) as refused:
            fetched(at)
    assert "strandline follower add" in (refused.value.hint or "")
    assert len(leader.asked) == 2


def test_uuids_become_text_as_spark_has_them() -> None:
    some = [uuid.uuid4() for _ in range(3)]
    rows = pa.record_batch([pa.array([*(u.bytes for u in some), None], pa.binary(16)), [b"x"] * 4], names=["u", "b"])
    wanted = pa.schema([("b", pa.binary()), ("u", pa.string())])
    assert with_text_uuids(rows, wanted).column("u").to_pylist() == [*map(str, some), None]
    assert with_text_uuids(rows.slice(1), wanted).column("u").to_pylist() == [*map(str, some[1:]), None]
    assert with_text_uuids(rows, wanted).column("b").to_pylist() == [b"x"] * 4


def test_a_range_across_terms_is_fetched_by_a_bounded_number_of_tasks() -> None:
    for numbers in (1, PART_NUMBERS, 7 * PART_NUMBERS, 16 * 2**40):
        size = part_size(numbers, PART_NUMBERS)
        assert size >= PART_NUMBERS and -(-numbers // size) <= PARTS_MAX
    assert part_size(7 * PART_NUMBERS, PART_NUMBERS) == PART_NUMBERS
