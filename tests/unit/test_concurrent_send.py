"""Chunks of one task that are sent at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from strandline.deliver.send.concurrent_send import sent
from strandline.deliver.send.patience import Patience, patience_of
from strandline.deliver.sink import ChunkRows, Landed, Outcome, Sender

MEETING = threading.Barrier(2)
CLOSED: list[int] = []
ROWS = pa.table({"n": [1]})


class Alone:
    """Says by its identity who sent what; nobody uses it while somebody else does."""

    def __init__(self) -> None:
        self.used = False

    def send(self, parcel: ChunkRows) -> Outcome:
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


class Trouble:
    """The guard of a task with one lane."""

    def __init__(self) -> None:
        self.patience = Patience(lanes=1)

    def unsent(self, chunk: int) -> str | None:
        return None if self.patience.tries("") else "unsent"

    def heard(self, chunk: int, answer: str) -> None:
        if answer == "later":
            self.patience.trouble("")
        else:
            self.patience.landed()


@pytest.mark.parametrize(("sender", "senders"), [(Alone(), 1), (Pair(), 2)])
def test_after_the_first_trouble_the_rest_is_given_back_unsent(sender: Sender, senders: int) -> None:
    tried = []

    def send(_: Sender, n: int, rows: pa.Table) -> str:
        tried.append(n)
        return "later" if n >= 5 else "landed"

    answers = list(sent(sender, chunks(800), send, Trouble()))
    assert len(tried) <= 5 + senders, "those that were on their way when the first answer came"
    expected = ["landed"] * 5 + ["later"] * (len(tried) - 5)
    assert answers == expected + ["unsent"] * (800 - len(tried))


def test_a_lane_in_trouble_does_not_hold_back_others_but_three_in_a_row_are_the_destination() -> None:
    patience = Patience(lanes=9)
    patience.trouble("a")
    assert not patience.tries("a") and patience.tries("b")
    patience.trouble("b")
    patience.landed()
    patience.trouble("c")
    patience.trouble("d")
    assert patience.tries("e") and not patience.is_over()
    patience.trouble("e")
    assert patience.is_over() and not patience.tries("f")


def test_whoever_asks_to_be_left_alone_means_all_lanes() -> None:
    patience = Patience(lanes=9)
    patience.trouble("a", asked_to_wait=True)
    assert patience.is_over()


def test_what_one_task_met_the_next_one_of_the_job_knows() -> None:
    patience_of("job", lanes=1).trouble("")
    assert patience_of("job", lanes=1).is_over() and not patience_of("another", lanes=1).is_over()
