"""`ReplicationState`: marks that only move forward, whoever moves them, and checkpoints that are believed or not."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline
from strandline.core.types import SEQ_MAX, Seq, ShardId
from strandline.replicate.state import SINGLE, ReplicationState

SHARDS = st.integers(0, 12).map(ShardId)
MARKS = st.integers(0, SEQ_MAX).map(Seq)
KNOWN = st.sets(SHARDS, max_size=8)
MOVES = st.lists(st.tuples(SHARDS, MARKS), max_size=50)


def test_a_new_state_has_applied_nothing_and_knows_no_other_shard() -> None:
    state = ReplicationState.new([ShardId(3), ShardId(5)])
    assert [state.applied_seqno(ShardId(n)) for n in (3, 5, 4)] == [0, 0, None]
    assert strandline.ReplicationState is ReplicationState
    assert SINGLE == 0 and ReplicationState.single().snapshot() == {SINGLE: 0}


@given(KNOWN, MOVES, st.randoms(use_true_random=False))
def test_marks_only_move_forward_and_their_order_does_not_matter(
    shards: set[ShardId], moves: list[tuple[ShardId, Seq]], order: random.Random
) -> None:
    state = ReplicationState.new(shards)
    for shard, mark in moves:
        before = state.snapshot()
        state.advance(shard, mark)
        after = state.snapshot()
        assert after.keys() == before.keys() == shards and all(after[s] >= before[s] for s in shards)
    other = ReplicationState.new(shards)
    for shard, mark in order.sample(moves, len(moves)):
        other.advance(shard, mark)
    expected = {s: max((m for of, m in moves if of == s), default=0) for s in shards}
    assert state.snapshot() == other.snapshot() == expected
    assert all(state.applied_seqno(s) is None for s in {s for s, _ in moves} - shards)


@pytest.fixture
def often_switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@settings(max_examples=20, deadline=None)
@given(st.lists(MOVES, min_size=4, max_size=8))
@pytest.mark.usefixtures("often_switching")
def test_many_threads_at_once_end_at_the_highest_mark_and_readers_see_it_only_rise(
    writers: list[list[tuple[ShardId, Seq]]],
) -> None:
    shards = [ShardId(n) for n in range(13)]
    state = ReplicationState.new(shards)
    together, done = threading.Barrier(len(writers) + 2), threading.Event()
    seen: list[list[dict[ShardId, Seq]]] = [[], []]

    def write(moves: list[tuple[ShardId, Seq]]) -> None:
        together.wait(60)
        for shard, mark in moves:
            state.advance(shard, mark)

    def read(into: list[dict[ShardId, Seq]]) -> None:
        together.wait(60)
        while not done.is_set() and len(into) < 1000:
            into.append({s: state.applied_seqno(s) or Seq(0) for s in shards})
            into.append(state.snapshot())

    readers = [threading.Thread(target=read, args=(into,)) for into in seen]
    threads = [threading.Thread(target=write, args=(moves,)) for moves in writers]
    for thread in (*threads, *readers):
        thread.start()
    for thread in threads:
        thread.join(60)
    done.set()
    for thread in readers:
        thread.join(60)
    moves = [move for of_one in writers for move in of_one]
    assert state.snapshot() == {s: max((m for of, m in moves if of == s), default=0) for s in shards}
    for one in seen:
        assert all(later[s] >= earlier[s] for earlier, later in pairwise(one) for s in shards)


def test_two_moves_of_one_shard_at_once_leave_the_higher_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower one has looked at the mark, and waits; without a lock it would write over the higher one."""
    state = ReplicationState.single()
    looked, other_began = threading.Event(), threading.Event()

    class Slow(int):
        def __gt__(self, other: int) -> bool:
            higher = int(self) > other
            looked.set()
            other_began.wait(60)
            return higher

    low = threading.Thread(target=state.advance, args=(SINGLE, Slow(5)))
    low.start()
    looked.wait(60)
    high = threading.Thread(target=state.advance, args=(SINGLE, Seq(9)))
    high.start()
    high.join(0.2)  # without a lock, it is done by then
    other_began.set()
    low.join(60)
    high.join(60)
    assert state.applied_seqno(SINGLE) == 9


def test_reads_wait_for_nobody() -> None:
    state = ReplicationState.single()
    state.advance(SINGLE, Seq(7))
    with state._moving:  # somebody moves a mark, and is stopped in the middle
        found: list[object] = []
        reader = threading.Thread(
            target=lambda: found.extend((state.applied_seqno(SINGLE), state.snapshot(), state.to_checkpoint_bytes())),
            daemon=True,
        )
        reader.start()
        reader.join(60)
        assert found == [7, {SINGLE: 7}, b'{"0": 7}']


def test_a_snapshot_is_a_copy() -> None:
    state = ReplicationState.single()
    copy = state.snapshot()
    copy[SINGLE] = Seq(9)
    state.advance(SINGLE, Seq(4))
    assert (state.applied_seqno(SINGLE), copy) == (4, {SINGLE: 9})


@given(KNOWN, MOVES, KNOWN)
def test_a_checkpoint_gives_back_every_mark_of_the_shards_that_are_asked_for(
    shards: set[ShardId], moves: list[tuple[ShardId, Seq]], wanted: set[ShardId]
) -> None:
    state = ReplicationState.new(shards)
    for shard, mark in moves:
        state.advance(shard, mark)
    stored = state.to_checkpoint_bytes()
    assert isinstance(json.loads(stored), dict)
    assert ReplicationState.from_checkpoint_bytes(stored, shards).snapshot() == state.snapshot()
    found = ReplicationState.from_checkpoint_bytes(stored, wanted)
    assert found.snapshot() == {s: state.applied_seqno(s) or 0 for s in wanted}
    assert all(found.applied_seqno(s) is None for s in shards - wanted)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()), KNOWN)
def test_whatever_the_bytes_are_every_asked_shard_has_a_mark_and_no_other(found: bytes, shards: set[ShardId]) -> None:
    marks = ReplicationState.from_checkpoint_bytes(found, shards).snapshot()
    assert marks.keys() == shards and all(type(m) is int and 0 <= m <= SEQ_MAX for m in marks.values())


@given(st.data(), st.dictionaries(SHARDS, MARKS, min_size=1, max_size=5))
def test_a_cut_off_checkpoint_counts_as_nothing(data: st.DataObject, marks: dict[ShardId, Seq]) -> None:
    whole = ReplicationState(marks).to_checkpoint_bytes()
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert ReplicationState.from_checkpoint_bytes(part, marks).snapshot() == dict.fromkeys(marks, 0)


@pytest.mark.parametrize(
    "damaged",
    [
        b"", b"null", b"[]", b"7", b'"0"', b"[" * 200_000, b"\xff\xfe", '{"0": 5}'.encode("utf-16"),
        b'{"0": 5, "0": 9}', b'{"0": 5, "1": "x"}', b'{"0": true}', b'{"0": 5.0}', b'{"0": -5}', b'{"00": 5}',
        b'{"0": 5, "one": 1}', b'{"0": 5, "-1": 1}', b'{"0": {"0": 5}}', b'{"0": NaN}', b'{"0": 5} x', b'{" 0": 5}',
        b'{"0": 9223372036854775808}', b'{"0": ' + b"9" * 10_000 + b"}", '{"٠": 5}'.encode(), b'{"0": [["0", 5]]}',
    ],
)  # fmt: skip
def test_damaged_and_foreign_bytes_count_as_nothing(damaged: bytes) -> None:
    state = ReplicationState.from_checkpoint_bytes(damaged, [SINGLE, ShardId(1)])
    assert state.snapshot() == {SINGLE: 0, ShardId(1): 0}
