"""Chunks of one task that are sent at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from strandline.deliver.side_by_side import sent
from strandline.deliver.sink import Landed, Outcome, Parcel, Sender

MEETING = threading.Barrier(2)
CLOSED: list[int] = []
ROWS = pa.table({"n": [1]})


class Alone:
    """Says by its identity who sent what; nobody uses it while somebody else does."""

    def __init__(self) -> None:
        self.used = False

    def send(self, parcel: Parcel) -> Outcome:
        assert not self.used
        self.used = True
        try:
            return Landed(1, str(id(self)), 1, repeat=False)
        finally:
            self.used = False

    def close(self) -> None:
        CLOSED.append(id(self))


class Pair(Alone):
    at_once = 2


@pytest.fixture(autouse=True)
def _fresh() -> None:
    MEETING.reset()
    CLOSED.clear()


def chunks(count: int) -> Iterator[tuple[int, pa.Table]]:
    return ((n, ROWS) for n in range(count))


def as_told(sender: Sender, n: int, rows: pa.Table) -> tuple[int, str]:
    outcome = sender.send(None)  # type: ignore[arg-type]
    assert isinstance(outcome, Landed)
    return n, outcome.digest


@pytest.mark.parametrize(("sender", "senders"), [(Alone(), 1), (Pair(), 2)])
def test_each_chunk_is_sent_once_and_answered_in_its_place(sender: Sender, senders: int) -> None:
    answers = list(sent(sender, chunks(50), as_told))
    assert [n for n, _ in answers] == list(range(50))
    assert len(set(CLOSED)) == len(CLOSED) == senders and {who for _, who in answers} <= set(map(str, CLOSED))


def test_two_are_on_their_way_at_once() -> None:
    def meet(sender: Sender, n: int, rows: pa.Table) -> int:
        MEETING.wait(60)  # breaks if the other one is not sent before this one has ended
        return n

    assert list(sent(Pair(), chunks(6), meet)) == list(range(6))


def test_no_more_chunks_are_built_than_are_sent_and_the_next() -> None:
    built = 0

    def counted() -> Iterator[tuple[int, pa.Table]]:
        nonlocal built
        for chunk in chunks(20):
            built += 1
            yield chunk

    for answered, _ in enumerate(sent(Pair(), counted(), as_told)):
        assert built <= answered + 3


def test_what_goes_wrong_with_one_is_told_and_all_connections_are_closed() -> None:
    def fails(sender: Sender, n: int, rows: pa.Table) -> Any:
        if n == 3:
            raise OSError("gone")
        return n

    answered = []
    with pytest.raises(OSError, match="gone"):
        answered.extend(sent(Pair(), chunks(10), fails))
    assert len(CLOSED) == 2
