"""The kind `postgres`: COPYs each chunk into a table and records its range beside it, in one transaction.

A repeat finds the range and does nothing; the database itself refuses a range that overlaps an existing one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg

from strandline.core.errors import DestinationTaken, RefusedError, SchemaError, StorageError, UsageError
from strandline.core.text.wording import plural
from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import (
    Address,
    Claim,
    Claimed,
    Held,
    Loss,
    Option,
    Rehearsal,
    Remaining,
    SinkContext,
    SinkKind,
)
from strandline.deliver.sinks.postgres import connect as connecting
from strandline.deliver.sinks.postgres.columns import (
    NAME_BYTES_MAX,
    PostgresColumnMisfit,
    TableName,
    add_columns,
    check_names,
    create_index,
    create_table,
    in_order,
    misfits,
    missing_columns,
    quote,
    read_shape,
)
from strandline.deliver.sinks.postgres.connect import HoldsConnection, check_dsn, parse_server
from strandline.deliver.sinks.postgres.inspect_ranges import PostgresInspector
from strandline.deliver.sinks.postgres.record import TABLES, RecordTables, Scope
from strandline.deliver.sinks.postgres.send import PostgresSender, rehearse
from strandline.deliver.sinks.postgres.table_identity import accept_loss, find_remains, keep_identity, settle_identity
from strandline.deliver.sinks.table_options import CREATE, MAY_BE_EMPTY, check_present, parse_flag
from strandline.iceberg.schema.columns import Column

SERVER_VERSION_MIN = 120_000  # generated columns came with PostgreSQL 12
DEFAULT_SCHEMA = "public"  # not the user's search path: who connects must not decide where rows go

_Answer = TypeVar("_Answer")


class PostgresSink(HoldsConnection):
    form = "copy"
    stores_watermarks = False

    def __init__(self, context: SinkContext) -> None:
        """Raises UsageError."""
        options = context.options
        check_present(options, "dsn", "table")
        self._context = context
        self._create, self._may_be_empty = parse_flag(options, CREATE), parse_flag(options, MAY_BE_EMPTY)
        self._table = _table_name(options["table"])
        self._record = RecordTables(self._table)
        self._columns: tuple[Column, ...] | None = None
        super().__init__(parse_server(options["dsn"]), f"strandline: {self._table.name}")
        self.destination = f"postgresql://{self._server.address}/{self._table.plain}"

    # --- the table ---

    def prepare(self, columns: Sequence[Column]) -> None:
        ordered = in_order(columns)
        check_names(ordered)
        self._ask(lambda connection: self._prepare(connection, ordered))
        self._ask(lambda connection: keep_identity(connection, self._record))
        self._columns = ordered

    def _prepare(self, connection: psycopg.Connection, columns: tuple[Column, ...]) -> None:
        if connection.info.server_version < SERVER_VERSION_MIN:
            raise RefusedError(
                f"{self.destination}: the server is too old", hint="PostgreSQL 12 is the oldest that works."
            )
        self._make_record(connection)
        shape = read_shape(connection, self._table)
        if shape is None:
            self._create_table(connection, columns)
            return
        if self._create and (new := missing_columns(columns, shape)):
            # Columns are added only if the others fit: a table that is refused is left as it was.
            others = [c for c in columns if c not in new]
            self._refuse_if(misfits(self._table, others, shape))
            self._execute(connection, add_columns(self._table, new))
            return
        self._refuse_if(misfits(self._table, columns, shape))

    def _create_table(self, connection: psycopg.Connection, columns: tuple[Column, ...]) -> None:
        gone, _ = self._record.given(connection, self._scope())
        if gone:
            raise RefusedError(
                f"{self._table.plain} is gone, and {plural(gone, 'row', 'was')} delivered to it",
                hint="Bring the table back with its rows, or let `strandline sink recover` send them again.",
            )
        statement = create_table(self._table, columns)
        if not self._create:
            raise SchemaError(
                f"there is no table {self._table.plain} at {self._server.address}",
                hint=f"Create it, or let the sink do so with --option create=true: {statement}; "
                f"{create_index(self._table)};",
            )
        self._execute(connection, f"{statement}; {create_index(self._table)}")

    def _refuse_if(self, found: Sequence[PostgresColumnMisfit]) -> None:
        if found:
            raise SchemaError(
                f"{self._table.plain} does not fit: {'; '.join(m.what for m in found)}",
                hint="; ".join(m.remedy for m in found),
            )

    # --- the record ---

    def _make_record(self, connection: psycopg.Connection) -> None:
        if self._record.exists(connection) and self._record.is_of_this_version(connection):
            return
        if connection.execute("SELECT to_regnamespace(%s)", (quote(self._table.schema),)).fetchone() == (None,):
            raise SchemaError(
                f"there is no schema {self._table.schema} at {self._server.address}",
                hint=f"CREATE SCHEMA {quote(self._table.schema)}",
            )
        with connection.transaction():
            self._record.create(connection)

    def claimed(self) -> Claimed | None:
        return self._ask(lambda c: self._record.claimed(c) if self._record.exists(c) else None)

    def claim(self, claim: Claim, generation: int) -> Claimed:
        return self._ask(lambda connection: self._claim(connection, claim, generation))

    def _claim(self, connection: psycopg.Connection, claim: Claim, generation: int) -> Claimed:
        self._make_record(connection)
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{connecting.LOCK_SECONDS_MAX}s'".encode())
            self._record.claim(connection, claim, generation)
            theirs = self._record.claimed(connection)
            if theirs is None:
                raise RefusedError(f"the claim on {self.destination} was removed while it was made")
            if (theirs.claim.lake, theirs.claim.dataset) != (claim.lake, claim.dataset):
                raise DestinationTaken(
                    f"{self.destination} belongs to lake {theirs.claim.lake}, dataset {theirs.claim.dataset}",
                    hint="Choose another table: rows of two sinks must not be mixed.",
                )
            if generation > theirs.generation or claim.term > theirs.claim.term:
                self._record.raise_to(connection, generation, claim.term)
            keep_identity(connection, self._record)
            return self._record.claimed(connection) or theirs

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        def ask(connection: psycopg.Connection) -> list[Held]:
            if not self._record.exists(connection):
                return [Held(None, ()) for _ in lanes]
            return [Held(None, ranges) for ranges in self._record.held(connection, lanes)]

        return self._ask(ask) if lanes else []

    # --- a table that lost its rows ---

    def _scope(self) -> Scope:
        return Scope(self._context.generation, self._context.builds_on())

    def find_loss(self) -> Loss | None:
        def ask(connection: psycopg.Connection) -> Loss | None:
            if not self._record.exists(connection) or self._record.claimed(connection) is None:
                return None
            self._make_record(connection)
            return settle_identity(connection, self._record, self._scope, may_be_empty=self._may_be_empty)

        return self._ask(ask, connecting.COUNT_SECONDS_MAX)

    def remaining(self, lanes: Sequence[Address]) -> list[Remaining]:
        scope = self._scope()
        held = self.held([(address, None) for address in lanes])
        below = self.held([(o.address, Seq(o.above)) for o in scope.older])
        found = self._ask(
            lambda c: [r for r in find_remains(c, self._record, scope) if not r.is_whole],
            connecting.COUNT_SECONDS_MAX,
        )
        result = []
        for address, all_ in zip(lanes, held, strict=True):
            own = {r.given.record.rows: r for r in found if r.given.partition == address.partition}
            older = [
                x
                for o, h in zip(scope.older, below, strict=True)
                for x in h.ranges
                if o.address.partition == address.partition and x.rows.hi <= o.upto
            ]
            there = tuple(h for h in (*older, *all_.ranges) if h.rows not in own)
            in_part = tuple(rows for rows, r in own.items() if not r.is_gone)
            result.append(Remaining(Held(None, there), in_part, sum(r.missing for r in own.values())))
        return result

    def accept_loss(self) -> None:
        self._ask(lambda c: accept_loss(c, self._record, self._scope()), connecting.COUNT_SECONDS_MAX)

    def set_watermarks(self, marks: Sequence[tuple[Address, Seq]]) -> None:
        """Nothing to do: ranges are kept forever."""

    # --- who delivers ---

    def _sender_name(self, token: str) -> str:
        """The name in pg_stat_activity: the sink's table, and the token of the lease."""
        table = hashlib.sha256(str(self._table).encode()).hexdigest()[:12]
        return f"strandline {table} {token[:36]}"

    def fence(self, token: str) -> None:
        """An older deliverer can do no harm: its range is there already, or it is refused. But one that was paused
        inside a transaction holds its range, and a new deliverer would wait for it; so its connections are ended."""

        def end(connection: psycopg.Connection) -> None:
            try:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND usename = current_user AND starts_with(application_name, %s) AND application_name <> %s",
                    (self._sender_name(""), self._sender_name(token)),
                )
            except psycopg.errors.InsufficientPrivilege:
                return  # then waiting has to do: its transaction is bounded

        self._ask(end)

    def sender(self, token: str) -> PostgresSender:
        if self._columns is None:
            raise UsageError("a sink is prepared before rows are sent")
        name, term = self._sender_name(token), self._context.term
        return PostgresSender(
            self._server, self._table, self._columns, name, term=term, may_be_empty=self._may_be_empty
        )

    def inspector(self) -> PostgresInspector:
        return PostgresInspector(self._server, self._table)

    def rehearsal(self, columns: Sequence[str]) -> Rehearsal:
        return Rehearsal(rehearse)

    def comparison(self, columns: Sequence[str]) -> None:
        """None: the text that was sent is not kept, only its digest."""

    def name_of(self, address: Address, rows: SeqRange) -> str:
        return f"{self._table.plain} {rows}"

    # --- the connection ---

    def _ask(
        self, question: Callable[[psycopg.Connection], _Answer], seconds: float = connecting.ANSWER_SECONDS_MAX
    ) -> _Answer:
        """Every question may be asked twice: the open connection may have died meanwhile."""
        kept = self._open is not None
        try:
            with connecting.time_limit(self._connect(), seconds) as connection:
                return question(connection)
        except psycopg.Error as e:
            gone = self._open is None or connecting.lost(self._open, e)
            if gone:
                self.close()
            if gone and kept:
                return self._ask(question, seconds)
            raise self._error(e) from None  # libpq's own text could repeat the connection string

    def _error(self, error: psycopg.Error) -> RefusedError | StorageError:
        why = self._server.scrub(f"{self.destination}: {connecting.explain(error)}")
        if error.sqlstate == "42501":
            schema = quote(self._table.schema)
            return RefusedError(
                why, hint=f"GRANT USAGE, CREATE ON SCHEMA {schema}, and SELECT, INSERT ON {self._table}, to the user."
            )
        return StorageError(why)

    def _execute(self, connection: psycopg.Connection, statement: str) -> None:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{connecting.LOCK_SECONDS_MAX}s'".encode())
            connection.execute(statement.encode())


def _table_name(given: str) -> TableName:
    parts = given.split(".")
    if len(parts) == 1:
        parts = [DEFAULT_SCHEMA, *parts]
    bad = len(parts) != 2 or any(
        not p.strip() or '"' in p or "\0" in p or len(p.encode()) > NAME_BYTES_MAX for p in parts
    )
    if bad:
        raise UsageError(
            f"option table is a name or schema.name, not {given!r}",
            hint="As PostgreSQL stores it: without quotes, and upper and lower case matter.",
        )
    if parts[1] in TABLES:
        raise UsageError(f"option table: {parts[1]} is a table of Strandline's own record")
    return TableName(parts[0], parts[1])


KIND = SinkKind(
    options=(
        Option(
            "dsn",
            "Where the server is: `postgresql://user@host/database`, or `env:NAME`.",
            required=True,
            check=check_dsn,
        ),
        Option("table", "The table: `name` (in the schema public) or `schema.name`.", required=True),
        CREATE,
        MAY_BE_EMPTY,
    ),
    open=PostgresSink,
    checked_when_idle=True,
)
