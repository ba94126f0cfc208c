"""Sends one chunk into the user's table: its range and its rows in one transaction."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from strandline.core import failpoints
from strandline.core.retry import RetryPolicy
from strandline.core.text.wording import part
from strandline.core.types import SEQ_COLUMN
from strandline.deliver.sink import (
    Address,
    ChunkRows,
    HeldRange,
    Landed,
    Outcome,
    Refused,
    TryLater,
    Unknown,
    term_passed,
)
from strandline.deliver.sinks.chunk_rows import joined_lines, numbers_in_order
from strandline.deliver.sinks.postgres import connect as connecting
from strandline.deliver.sinks.postgres.columns import TableName, copy_in, misfits, quote, read_shape
from strandline.deliver.sinks.postgres.connect import BEGIN, HoldsConnection, PostgresServer
from strandline.deliver.sinks.postgres.record import TABLES, RecordTables, landed, pack_numbers, settled
from strandline.deliver.sinks.postgres.table_identity import has_index, holds_only, is_another_table
from strandline.iceberg.schema.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

_BUSY = RetryPolicy(0.2, 1.0, attempts_max=4)  # the server refused, and may not the next time
_AWAY = RetryPolicy(0.4, 0.4, attempts_max=3)  # the connection was lost: short, the next tick asks again
SEND_SECONDS_MAX = 300.0  # for one attempt, all rows of a chunk over a slow line included
# Rows of a chunk that are tried one by one if it is not clear whether the rows are refused or the server fails.
PROBES_MAX = 16
_PIECE_BYTES = 1 << 20
_LINE = re.compile(r"\bline (\d+)(?:, column ([^:]+))?")


class _Again(Exception):
    """Nothing was committed, and the next attempt may succeed."""

    def __init__(self, why: str, *, at_once: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.at_once = at_once


@dataclass(frozen=True, slots=True)
class _Load:
    """A chunk as it is sent."""

    pieces: tuple[memoryview, ...]
    held: HeldRange
    numbers: bytes | None


def load(chunk: ChunkRows) -> _Load:
    """Checks the chunk once more: sorted, each sequence number once, all inside the range. Raises ValueError."""
    numbers, lines = numbers_in_order(chunk), chunk.rows.column("line")
    rows_each = max(1, len(lines) * _PIECE_BYTES // max(1, lines.nbytes))
    pieces = tuple(joined_lines(chunk.rows, rows_each))
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    size = sum(len(piece) for piece in pieces)
    held = HeldRange(chunk.range, len(numbers), f"sha256:{digest.hexdigest()}", size)
    return _Load(pieces, held, pack_numbers(numbers, chunk.range))


def rehearse(chunk: ChunkRows) -> Landed:
    """What the record of a chunk would be."""
    return landed(load(chunk).held)


class PostgresSender(HoldsConnection):
    def __init__(
        self,
        server: PostgresServer,
        table: TableName,
        columns: tuple[Column, ...],
        application: str,
        *,
        term: int,
        may_be_empty: bool,
    ) -> None:
        super().__init__(server, application)
        self._table = table
        self._columns = columns
        self._term = term
        self._may_be_empty = may_be_empty
        self._blames_rows = False
        self._indexed: bool | None = None
        self._record = RecordTables(table)
        self._lanes: dict[Address, int] = {}

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_lanes": {}}

    def send(self, chunk: ChunkRows) -> Outcome:
        made = load(chunk)
        why = ""
        for attempt in _BUSY.attempts():
            try:
                return self._attempt(chunk, made)
            except _Again as e:
                why, attempt.at_once = e.why, e.at_once
            except BaseException:
                self.close()  # nothing of the transaction may stay open
                raise
        return TryLater(self._server.scrub(why))

    def _attempt(self, chunk: ChunkRows, made: _Load) -> Outcome:
        fresh = self._open is None
        try:
            connection = self._connect()
        except psycopg.Error as e:
            return TryLater(self._server.scrub(f"no connection to {self._server.address}: {connecting.explain(e)}"))
        with connecting.time_limit(connection, SEND_SECONDS_MAX):
            try:
                known = self._write(connection, chunk, made)
            except psycopg.Error as e:
                return self._failed(connection, e, chunk, fresh=fresh)
            if known is not None:
                self._roll_back(connection)
                return known
            failpoints.hit("postgres.before_commit")
            try:
                answer = connection.execute("COMMIT").statusmessage
            except psycopg.Error as e:
                if connecting.lost(connection, e):
                    return self._ask(chunk, e)
                return self._failed(connection, e, chunk, fresh=True)
        if answer != "COMMIT":
            raise _Again(f"the server answered the commit with {answer}")
        failpoints.hit("postgres.after_commit")
        return landed(made.held)

    def _write(self, connection: psycopg.Connection, chunk: ChunkRows, made: _Load) -> Outcome | None:
        """Everything before the commit; None: commit."""
        lane = self._lane(connection, chunk.address)
        connection.execute(BEGIN)
        # The range first: a sender of the same range waits here, and not after it has sent all rows.
        if not self._record.put(connection, lane, made.held, made.numbers):
            known = settled(chunk.range, self._record.overlapping(connection, lane, chunk.range))
            if known is None:
                raise _Again("the range was there, and a moment later it was not", at_once=True)
            return known
        if (claimed := self._record.hold_term(connection)) is not None and claimed > self._term:
            return TryLater(term_passed(self._table.plain, claimed))
        cursor = connection.cursor()
        with cursor.copy(copy_in(self._table, self._columns).encode()) as stream:
            for piece in made.pieces:
                stream.write(piece)
        if cursor.rowcount != made.held.count:
            return TryLater(
                f"{self._table.plain} took {part(cursor.rowcount, made.held.count or 0, 'row')}: "
                "a trigger on it removes or adds rows"
            )
        # From COPY to COMMIT the table is locked against ALTER. It may have a narrower column, which silently rounds.
        if (altered := self._altered(connection)) is not None:
            return TryLater(altered)
        if is_another_table(connection, self._record):
            return TryLater(f"{self._table.plain} was emptied, rewritten or replaced a moment ago")
        if not self._may_be_empty and self._was_emptied(connection, lane, chunk, made):
            return TryLater(f"{self._table.plain} was emptied a moment ago: it holds none of the rows it got before")
        return None

    def _was_emptied(self, connection: psycopg.Connection, lane: int, chunk: ChunkRows, made: _Load) -> bool:
        if self._indexed is None:
            self._indexed = bool(has_index(connection, self._table))
        generation = chunk.address.generation
        return holds_only(connection, self._record, lane, made.held, generation, indexed=self._indexed)

    def _altered(self, connection: psycopg.Connection) -> str | None:
        shape = read_shape(connection, self._table)
        if shape is None:
            return f"{self._table.plain} is gone: bring it back, or let the sink be prepared again"
        if found := misfits(self._table, self._columns, shape):
            what = "; ".join(m.what for m in found)
            return f"{self._table.plain} was altered: {what}. Repair it ({found[0].remedy}), or prepare the sink again"
        return None

    def _failed(
        self, connection: psycopg.Connection, error: psycopg.Error, chunk: ChunkRows, *, fresh: bool
    ) -> Outcome:
        """The outcome of an attempt that committed nothing. Raises _Again."""
        why = connecting.explain(error)
        if connecting.lost(connection, error):
            self.close()
            if not fresh:
                raise _Again(why, at_once=True)  # the connection was kept since the last chunk, and died meanwhile
            return TryLater(self._server.scrub(f"the connection to {self._server.address} was lost: {why}"))
        self._roll_back(connection)
        if connecting.may_pass_soon(error):
            raise _Again(why)
        about_content = connecting.is_about_content(error)
        if about_content and error.diag.table_name in TABLES:
            self._lanes.clear()  # the record was restored or emptied meanwhile: the rows are not to blame
            raise _Again(why)
        if about_content or connecting.is_about_the_table(error):
            self._lanes.clear()
            with contextlib.suppress(psycopg.Error):
                if (altered := self._altered(connection)) is not None:
                    return TryLater(self._server.scrub(f"{altered} ({why})"))
        may_be_rows = connecting.may_be_about_content(error)
        if about_content or (may_be_rows and (self._blames_rows or self._takes_others(connection, chunk))):
            return Refused(self._server.scrub(f"{why}{_where(error, chunk)}"))
        return TryLater(self._server.scrub(why), may_be_rows=may_be_rows)

    def blaming_rows(self) -> PostgresSender:
        made = copy.copy(self)
        made._blames_rows = True
        return made

    def takes_any(self, rows: pa.Table) -> bool:
        try:
            connection = self._connect()
        except psycopg.Error:
            return False
        with connecting.time_limit(connection, SEND_SECONDS_MAX):
            return self._any_succeeds(connection, self._line_probes(connection, rows))

    def _takes_others(self, connection: psycopg.Connection, chunk: ChunkRows) -> bool:
        """Whether the table accepts a row now, of this chunk or a copy of its own: then it refuses only this chunk."""
        probes = self._line_probes(connection, chunk.rows) if chunk.rows.num_rows > 1 else []
        number = quote(SEQ_COLUMN)
        probes.append(lambda: self._try_copy(connection, number))
        # A trigger may refuse what exists already: the same row with a sequence number that no row has.
        probes.append(lambda: self._try_copy(connection, f"greatest({number}::bigint, {int(chunk.range.hi)}) + 1"))
        return self._any_succeeds(connection, probes)

    def _line_probes(self, connection: psycopg.Connection, rows: pa.Table) -> list[Callable[[], bool]]:
        lines = rows.column("line")
        step = max(1, -(-len(lines) // PROBES_MAX))
        return [
            functools.partial(self._try_line, connection, str(lines[n].as_py())) for n in range(0, len(lines), step)
        ]

    def _any_succeeds(self, connection: psycopg.Connection, probes: Sequence[Callable[[], bool]]) -> bool:
        """Nothing is committed."""
        try:
            connection.execute(BEGIN)
            return any(map(_succeeds(connection), probes))
        except psycopg.Error:
            return False
        finally:
            self._roll_back(connection)

    def _try_line(self, connection: psycopg.Connection, line: str) -> bool:
        cursor = connection.cursor()
        with cursor.copy(copy_in(self._table, self._columns).encode()) as stream:
            stream.write(f"{line}\n")
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return cursor.rowcount == 1

    def _try_copy(self, connection: psycopg.Connection, number: str) -> bool:
        """Tries a copy of the newest row, with this SQL expression as its sequence number. A violation because the row
        exists already is no trouble of the server."""
        column, others = quote(SEQ_COLUMN), [quote(c.name) for c in self._columns if c.name != SEQ_COLUMN]
        statement = (
            f"INSERT INTO {self._table} ({', '.join((column, *others))}) SELECT {', '.join((number, *others))} "
            f"FROM {self._table} WHERE {column} IS NOT NULL ORDER BY {column} DESC LIMIT 1"
        )
        try:
            done = connection.execute(statement.encode()).rowcount
        except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
            return True
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return done == 1

    def _ask(self, chunk: ChunkRows, error: psycopg.Error) -> Outcome:
        """The commit was sent and its response was lost: look up the range."""
        why = f"the connection was lost at the commit: {connecting.explain(error)}"
        self.close()
        for attempt in _AWAY.attempts():
            try:
                connection = self._connect()
                with connecting.time_limit(connection, SEND_SECONDS_MAX):
                    lane = self._lane(connection, chunk.address)
                    known = settled(chunk.range, self._record.overlapping(connection, lane, chunk.range))
                # A missing range may still appear if the server is still committing: the next attempt is a repeat then.
                return known or TryLater(self._server.scrub(f"{why}; nothing landed"))
            except psycopg.Error as e:
                self.close()
                why = f"{why}; {connecting.explain(e)}" if attempt.number == 1 else why
        return Unknown(self._server.scrub(why))

    def _lane(self, connection: psycopg.Connection, address: Address) -> int:
        if address not in self._lanes:
            self._lanes[address] = self._record.ensure_lane(connection, address)
        return self._lanes[address]

    def _roll_back(self, connection: psycopg.Connection) -> None:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()


def _succeeds(connection: psycopg.Connection) -> Callable[[Callable[[], bool]], bool]:
    def try_it(attempt: Callable[[], bool]) -> bool:
        connection.execute("SAVEPOINT probe")
        try:
            return attempt()
        except psycopg.Error:
            if connection.closed or connection.broken:
                raise
            return False
        finally:
            if not (connection.closed or connection.broken):
                connection.execute("ROLLBACK TO SAVEPOINT probe")

    return try_it


def _where(error: psycopg.Error, chunk: ChunkRows) -> str:
    """The sequence number and the column, as far as the server says at which line it stopped."""
    found = _LINE.search(error.diag.context or "")
    line = int(found[1]) if found else 0
    if found is None or not 1 <= line <= chunk.rows.num_rows:
        return ""
    column = found[2] or error.diag.column_name
    number = chunk.rows.column(SEQ_COLUMN)[line - 1].as_py()
    return f" (at number {number}{f', column {column}' if column else ''})"
