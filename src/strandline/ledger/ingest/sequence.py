"""The counter: the one row that everything waits for, and therefore held as briefly as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import LedgerUnreadable
from strandline.core.types import Seq, SeqRange
from strandline.ledger.engine import REBUILD_HINT
from strandline.ledger.schema.core import sequence
from strandline.ledger.witness import Witness, behind


@dataclass(frozen=True, slots=True)
class Counter:
    lake: str
    last: int
    epoch: int


def _counter(row: Any) -> Counter:
    if row is None:
        raise LedgerUnreadable("the ledger has no sequence", hint=REBUILD_HINT)
    return Counter(row.lake, row.last, row.epoch)


_READ = sa.select(sequence.c.lake, sequence.c.last, sequence.c.epoch)


def read(connection: sa.Connection) -> Counter:
    return _counter(connection.execute(_READ).one_or_none())


def lock(connection: sa.Connection) -> Counter:
    """Nobody else takes a number until this transaction ends."""
    return _counter(connection.execute(_READ.with_for_update()).one_or_none())


def check(connection: sa.Connection, witness: Witness) -> Counter:
    """Under the lock: the witness stands where the counter does, or `OpeningNeeded`."""
    counter = lock(connection)
    found = witness.read().highest
    if found != counter.last:
        raise behind(found, counter.last)
    return counter


COUNT: sa.BindParameter[int] = sa.bindparam("count", type_=sa.BigInteger)
TAKE = (
    sequence.update().values(last=sequence.c.last + COUNT).returning(sequence.c.lake, sequence.c.last, sequence.c.epoch)
)
"""Whoever executes this holds the counter's lock, and must call `witnessed` before the transaction commits."""


def take(connection: sa.Connection, witness: Witness, count: int, *, step: str) -> tuple[SeqRange, Counter]:
    """The next `count` numbers."""
    counter = _counter(connection.execute(TAKE, {"count": count}).one_or_none())
    return witnessed(witness, counter.last, count, step=step), counter


def witnessed(witness: Witness, last: int, count: int, *, step: str) -> SeqRange:
    """The numbers up to `last`, just taken. The witness has them before the caller's transaction commits; if that
    transaction fails, nobody gets them, and the next opening finds the witness ahead."""
    failpoints.hit(f"{step}.before_witness")
    witness.raise_to(last, expected=last - count)
    failpoints.hit(f"{step}.after_witness")
    return SeqRange(Seq(last - count + 1), Seq(last))


def move(connection: sa.Connection, *, last: int, epoch: int) -> None:
    """Only the opening procedure moves the counter otherwise, under the lock; the store refuses a way back."""
    connection.execute(sequence.update().values(last=last, epoch=epoch))
