"""Consumers: where they continue, and which of their rows may be gone.

The Spark data source and `strandline read --consumer` use this. `ledger/read/consumers.py` stores consumers.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core import read_token as tokens
from strandline.core.errors import RefusedError, UsageError
from strandline.core.read_token import Continuation
from strandline.core.types import Dataset, Seq, SeqRange
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import blocks
from strandline.ledger.maintain import floors
from strandline.ledger.read import consumers
from strandline.ledger.read.consumers import Consumer, ConsumerTerms
from strandline.ledger.replicate import cuts


def check_rows_remain(
    connection: Connection, dataset: Dataset, after: Seq | None, reader: Consumer | None, table_floor: int = 0
) -> None:
    """Raises RefusedError if retention may have deleted rows above `after`. Rows that retention dropped by the
    consumer's own rule (`on_lag`) are recorded, and the consumer continues without them.

    `table_floor` is the floor on the table whose rows are read. The table is loaded before this is called: retention
    raises both floors before it deletes a row. A ledger that was restored from an older copy lacks the newest floors,
    and the blocks below them."""
    known = floors.get(connection, dataset.id) or 0
    floor = Seq(max(known, table_floor))
    dropped = None if reader is None else consumers.dropped_upto(connection, reader.id)
    if floor <= max(after or 0, dropped or 0):
        return
    gone = SeqRange(Seq((after or 0) + 1), floor)
    if known == floor and floors.rows_published(connection, dataset.id, gone) == 0:
        return
    raise RefusedError(
        f"rows {gone} of {dataset.name} may be gone: retention has deleted rows up to {floor}, and this reader has "
        f"them up to {after or 0} only",
        hint="Retention keeps rows for a reader that has a name. To continue without these rows, start the query with "
        "a new checkpoint: it begins above them.",
    )


def start_of(connection: Connection, dataset: Dataset, lake: str, token: Continuation) -> Seq | None:
    """The sequence number after which a reader with this token continues. Raises TokenError."""
    sealed = blocks.sealed(connection, dataset.id)
    after = tokens.check(token, lake=lake, dataset=dataset.uuid, name=dataset.name, sealed=sealed)
    check_leader_known(connection, dataset, after)
    return after


def check_leader_known(connection: Connection, dataset: Dataset, after: Seq | None) -> None:
    """Raises TokenError if the sequence number comes from a leader that this lake does not know."""
    if after is not None:
        tokens.check_left_out(dataset.name, cuts.left_out_term(connection, dataset.id, [after]))


@dataclass(frozen=True, slots=True)
class Consumers:
    lake: str
    ledger: Ledger

    def begin(
        self, dataset: Dataset, name: str, since: str | None = None, terms: ConsumerTerms | None = None
    ) -> NamedReading:
        """Registers a reader under the name: it begins after the token, or at the consumer's watermark, or with the
        first row that retention has left. A query that used the name before cannot move the watermark any more. Raises
        TokenError, and RefusedError if rows that the reader needs may be gone."""
        token = None if since is None else tokens.decode(since)
        with self.ledger.write() as connection:
            known = consumers.find(connection, dataset.id, name)
            if token is not None:
                at = start_of(connection, dataset, self.lake, token)
            else:
                at = floors.get(connection, dataset.id) if known is None else known.watermark
            found = consumers.begin(connection, dataset, name, at, terms)
            check_rows_remain(connection, dataset, at, found)
        return NamedReading(self, dataset, found, Continuation(self.lake, dataset.uuid, at).encode())

    def remove(self, dataset: Dataset, name: str) -> None:
        """From now on, retention keeps nothing for it."""
        self.ledger.change(consumers.remove, dataset, name)


@dataclass(frozen=True, slots=True)
class NamedReading:
    """The right to move a consumer's watermark, until another reader begins under its name."""

    of: Consumers
    dataset: Dataset
    consumer: Consumer
    start: str  # the token after which it begins

    def advance(self, continuation: str) -> None:
        """Moves the watermark: the consumer has all rows up to the token. Raises NoSuchConsumer if it was removed, and
        RefusedError if another reader uses its name now."""
        token = tokens.decode(continuation)
        if (token.lake, token.dataset) != (self.of.lake, self.dataset.uuid):
            raise UsageError(f"the token is not for {self.dataset.name}")
        if token.after is not None:
            self.of.ledger.change(consumers.advance, self.consumer, token.after)
