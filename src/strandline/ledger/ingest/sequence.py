"""The counter of sequence numbers. Every writer waits for this one row, so it is locked as briefly as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import LedgerUnreadable, RefusedError
from strandline.core.sites.terms import term_of
from strandline.core.types import Seq, SeqRange
from strandline.ledger.closed_ledger import move_of
from strandline.ledger.database_errors import REBUILD_HINT
from strandline.ledger.schema.core import sequence
from strandline.ledger.witness import Witness, resync_needed


@dataclass(frozen=True, slots=True)
class Counter:
    lake: str
    last: int
    epoch: int


def _counter(row: Any) -> Counter:
    if row is None:
        raise LedgerUnreadable("the ledger has no counter of sequence numbers", hint=REBUILD_HINT)
    return Counter(row.lake, row.last, row.epoch)


def _in_use(row: Any) -> Counter:
    """Raises LedgerMoved for a ledger that a migration has closed: the lake continues in another one."""
    counter = _counter(row)
    if (move := move_of(row)) is not None:
        raise move.refusal()
    return counter


_READ = sa.select(sequence)


def read(connection: sa.Connection) -> Counter:
    return _in_use(connection.execute(_READ).one_or_none())


def lock(connection: sa.Connection) -> Counter:
    """Locks the counter: no other process takes a sequence number until this transaction ends."""
    return _in_use(connection.execute(_READ.with_for_update()).one_or_none())


def check(connection: sa.Connection, witness: Witness) -> Counter:
    """Locks the counter and compares it with the witness; `ResyncNeeded` if they differ."""
    counter = lock(connection)
    highest = witness.read().highest
    if highest != counter.last:
        raise resync_needed(highest, counter.last)
    return counter


COUNT: sa.BindParameter[int] = sa.bindparam("count", type_=sa.BigInteger)
# This statement locks the counter. The caller must call `witnessed` before the transaction commits.
TAKE = (
    sequence.update().values(last=sequence.c.last + COUNT).returning(sequence.c.lake, sequence.c.last, sequence.c.epoch)
)


def take(connection: sa.Connection, witness: Witness, count: int, *, step: str) -> tuple[SeqRange, Counter]:
    """Takes the next `count` sequence numbers."""
    counter = _counter(connection.execute(TAKE, {"count": count}).one_or_none())
    return witnessed(witness, counter.last, count, step=step), counter


def witnessed(witness: Witness, last: int, count: int, *, step: str) -> SeqRange:
    """Raises the witness to `last` and returns the sequence numbers just taken. The witness has them before the
    caller's transaction commits. If the transaction fails, no block gets them, and the next resync finds the witness
    ahead. Raises RefusedError at the end of the term's numbers: later numbers may be another leader's."""
    if term_of(Seq(last)) != (term := term_of(Seq(last - count))):
        raise RefusedError(
            f"this site has used up the sequence numbers of term {term}, in which it leads",
            hint="`strandline promote` at a follower begins another term, with numbers of its own.",
        )
    failpoints.hit(f"{step}.before_witness")
    witness.raise_to(last, expected=last - count)
    failpoints.hit(f"{step}.after_witness")
    return SeqRange(Seq(last - count + 1), Seq(last))


def move(connection: sa.Connection, *, last: int, epoch: int) -> None:
    """Sets the counter and the epoch, under the lock. The database refuses to move the counter back."""
    connection.execute(sequence.update().values(last=last, epoch=epoch))
