"""The arbiter's record as bytes, and what an arbiter does about a cell that fails."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from strandline.core import failpoints
from strandline.core.errors import StorageError, WrongLake
from strandline.core.sites.arbiter import (
    CellMoved,
    CellUnclear,
    LeaderRecord,
    Member,
    RecordUnreadable,
    StoredRecord,
    decode,
    encode,
)
from strandline.replicate.arbiter.arbiter import Arbiter, PutLanded, PutRefused, PutUnknown, VersionedRecord

RECORD = LeaderRecord(
    "lake", 17, 1, "site-b", "https://b", True, 1, frozenset({Member(2, "c"), Member(3, "d")}), 30.0, beat=4
)


def test_a_record_comes_back_as_it_was_written() -> None:
    for record in (RECORD, replace(RECORD, address=None, before=None, members=frozenset(), leads=False)):
        assert decode(encode(record, "n")) == (record, "n")


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", encode(RECORD, "n")[:-9], b'{"version": 1}'])
def test_a_damaged_record_is_said_to_be_damaged(body: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="damaged"):
        decode(body)


def test_a_record_of_a_newer_program_is_not_guessed_at() -> None:
    with pytest.raises(RecordUnreadable, match="version 2"):
        decode(encode(RECORD, "n").replace(b'"version": 1', b'"version": 2'))


class Failing:
    """A cell that does or does not do what it was asked, and then fails."""

    place = "somewhere"

    def __init__(self) -> None:
        self.stored: StoredRecord | None = None
        self.fails: Exception | None = None
        self.lands = True
        self.unreadable = False
        self.hangs = threading.Event()
        self.hangs.set()

    def read(self) -> StoredRecord | None:
        self.hangs.wait()
        if self.unreadable:
            raise StorageError("away")
        return self.stored

    def write(self, body: bytes, *, over: str | None) -> str:
        self.hangs.wait()
        if over != (None if self.stored is None else self.stored.version):
            raise CellMoved
        if self.lands:
            self.stored = StoredRecord(body, str(int(over or 0) + 1))
        if self.fails is not None:
            raise self.fails
        return str(int(over or 0) + 1)


@pytest.fixture
def cell() -> Failing:
    return Failing()


@pytest.fixture
def arbiter(cell: Failing) -> Arbiter:
    return Arbiter(cell, "lake", call_seconds_max=20)


def test_a_put_whose_answer_was_lost_has_landed_if_the_record_is_ours(cell: Failing, arbiter: Arbiter) -> None:
    cell.fails = CellUnclear("cut off")
    outcome = arbiter.put(RECORD, over=None)
    assert isinstance(outcome, PutLanded) and outcome.now == arbiter.read()


def test_a_put_that_cannot_be_read_back_is_unknown(cell: Failing, arbiter: Arbiter) -> None:
    cell.fails, cell.unreadable = CellUnclear("cut off"), True
    assert isinstance(arbiter.put(RECORD, over=None), PutUnknown)


@pytest.mark.parametrize("first", [True, False])
def test_a_put_that_may_still_land_is_not_called_refused(cell: Failing, arbiter: Arbiter, first: bool) -> None:
    before = None if first else _landed(arbiter.put(RECORD, over=None))
    cell.fails, cell.lands = CellUnclear("cut off"), False
    assert isinstance(arbiter.put(RECORD, over=before), PutUnknown)


def test_a_put_over_an_older_record_is_refused_and_says_which_one_is_there(cell: Failing, arbiter: Arbiter) -> None:
    first = _landed(arbiter.put(RECORD, over=None))
    second = _landed(arbiter.put(replace(RECORD, term=18), over=first))
    assert arbiter.put(replace(RECORD, term=19), over=first) == PutRefused(second)
    assert arbiter.put(RECORD, over=None) == PutRefused(second)
    assert second.record.beat == first.record.beat + 1


def test_an_arbiter_that_hangs_is_waited_for_no_longer_than_allowed(cell: Failing) -> None:
    arbiter = Arbiter(cell, "lake", call_seconds_max=0.05)
    cell.hangs.clear()
    try:
        for _ in range(9):  # the last one fails at once: eight calls are not answered yet
            with pytest.raises(StorageError, match=r"did not answer|are still unanswered"):
                arbiter.read()
        with pytest.raises(StorageError, match=r"calls to the arbiter at .* are still unanswered"):
            arbiter.put(RECORD, over=None)
    finally:
        cell.hangs.set()


def test_a_put_that_hangs_may_have_landed(cell: Failing) -> None:
    arbiter = Arbiter(cell, "lake", call_seconds_max=0.05)
    cell.hangs.clear()
    try:
        assert isinstance(arbiter.put(RECORD, over=None), PutUnknown)
    finally:
        cell.hangs.set()


def test_the_arbiter_of_another_lake_is_refused(cell: Failing, arbiter: Arbiter) -> None:
    arbiter.put(RECORD, over=None)
    with pytest.raises(WrongLake, match="belongs to lake lake"):
        Arbiter(cell, "other", call_seconds_max=20).read()


@pytest.mark.parametrize("point", ["arbiter.before_put", "arbiter.after_put"])
def test_whoever_dies_at_a_put_leaves_the_record_whole(cell: Failing, arbiter: Arbiter, point: str) -> None:
    first = _landed(arbiter.put(RECORD, over=None))
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        arbiter.put(replace(RECORD, term=33), over=first)
    failpoints.arm("")
    now = arbiter.read()
    assert now is not None and now.record.term == (17 if point == "arbiter.before_put" else 33)
    _landed(arbiter.put(RECORD, over=now))


def _landed(outcome: object) -> VersionedRecord:
    assert isinstance(outcome, PutLanded)
    return outcome.now
