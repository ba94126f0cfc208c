"""Checks whether the table is still the one that rows were delivered to, and whether it holds what it got.

The record is beside the table, so the table can lose its rows while the record keeps their ranges. The owner may delete
rows, by age or because they are processed: that is no loss. A table without any row is a loss, unless the owner said
beforehand that it may be empty. Every chunk checks that before it commits, because its own rows would hide the loss. A
table that was dropped, created again or truncated has another oid or other storage, and the record remembers both. If
they differ, the rows decide: VACUUM FULL and a restored backup change them, too, and lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.types import SEQ_COLUMN, SeqRange
from strandline.deliver.sink import HeldRange, Loss
from strandline.deliver.sinks.postgres.columns import TableName, quote, read_shape
from strandline.deliver.sinks.postgres.connect import LOCK_SECONDS_MAX
from strandline.deliver.sinks.postgres.inspect_ranges import count_in_table, escaped
from strandline.deliver.sinks.postgres.record import GivenRange, PostgresTable, RecordTables, Scope, numbers_of

if TYPE_CHECKING:
    import psycopg

_NUMBER = quote(SEQ_COLUMN)

_IDENTITY = """
SELECT c.oid::bigint, coalesce(pg_relation_filenode(c.oid)::text,
       (SELECT md5(coalesce(string_agg(concat(t.relid::oid, ':', pg_relation_filenode(t.relid)), ','
                                       ORDER BY t.relid::oid), ''))
        FROM pg_partition_tree(c.oid) t WHERE t.isleaf))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""

_COLUMN = """
SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid
               AND i.indpred IS NULL)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
WHERE n.nspname = %s AND c.relname = %s AND a.attname = %s
"""
_EMPTY_HINT = "If consumers delete all rows: `strandline sink update NAME --option may_be_empty=true`, then resume it."


@dataclass(frozen=True, slots=True)
class RemainingRows:
    """What a table still has of a range that it got."""

    given: GivenRange
    missing: int

    @property
    def is_whole(self) -> bool:
        return self.missing == 0

    @property
    def is_gone(self) -> bool:
        return self.missing == self.given.record.held.count


def read_identity(connection: psycopg.Connection, table: TableName) -> PostgresTable | None:
    row = connection.execute(_IDENTITY, (table.schema, table.name)).fetchone()
    return None if row is None else PostgresTable(int(row[0]), str(row[1]))


def keep_identity(connection: psycopg.Connection, record: RecordTables) -> None:
    """Stores the identity if the record has none: the first one counts until `settle_identity` has checked the rows."""
    record.set_identity(connection, read_identity(connection, record.table), only_first=True)


def is_another_table(connection: psycopg.Connection, record: RecordTables) -> bool:
    """Whether the table is not the one in the record. The transaction wrote to it, so nobody can truncate it now."""
    recorded = record.identity(connection)
    return recorded is not None and recorded != read_identity(connection, record.table)


def holds_only(
    connection: psycopg.Connection, record: RecordTables, lane: int, chunk: HeldRange, generation: int, *, indexed: bool
) -> bool:
    """Whether the chunk that this transaction has written is all that the table holds, although rows of the generation
    were delivered before. One statement, and so one snapshot: a chunk that lands beside this one shows its rows and its
    range, or neither. With an index it reads the row next to the chunk, not those that were deleted by age."""
    name = escaped(record.table)
    below, above = (f"ORDER BY {_NUMBER} DESC", f"ORDER BY {_NUMBER}") if indexed else ("", "")
    delivered, values = record.delivered_beside(lane, chunk.rows, generation)
    found = connection.execute(
        f"SELECT NOT coalesce((SELECT true FROM {name} WHERE {_NUMBER} < %(lo)s {below} LIMIT 1), "
        f"(SELECT true FROM {name} WHERE {_NUMBER} > %(hi)s {above} LIMIT 1), "
        # Rows of other lanes have sequence numbers in the same range.
        f"(SELECT count(*) > %(count)s FROM {name} WHERE {_NUMBER} BETWEEN %(lo)s AND %(hi)s)) "
        f"AND {delivered}".encode(),
        values | {"hi": chunk.rows.hi, "count": chunk.count},
    ).fetchone()
    return bool(found and found[0])


def settle_identity(
    connection: psycopg.Connection, record: RecordTables, scope: Callable[[], Scope], *, may_be_empty: bool
) -> Loss | None:
    """What the table lacks of what it got; if nothing, its present identity is stored. `scope` queries the ledger, so
    it is called only if the first check is not enough."""
    recorded = record.identity(connection)
    now = read_identity(connection, record.table)
    if now is not None and recorded == now and (may_be_empty or has_rows(connection, record.table)):
        return None
    with connection.transaction():
        now = _locked(connection, record.table)
        loss = _compare(connection, record, scope(), recorded, now, may_be_empty=may_be_empty)
        if loss is None:
            record.set_identity(connection, now)
        return loss


def _compare(
    connection: psycopg.Connection,
    record: RecordTables,
    scope: Scope,
    recorded: PostgresTable | None,
    now: PostgresTable | None,
    *,
    may_be_empty: bool,
) -> Loss | None:
    rows, span = record.given(connection, scope)
    name = record.table.plain
    if span is None:
        return None
    if now is None:
        return Loss(f"its table {name} is gone", rows, 0)
    if recorded is None:
        return None  # the record is older than the identity
    if now.oid == recorded.oid:
        # The owner may have deleted rows. After TRUNCATE, or a DELETE of everything, there are none.
        is_there = _has_numbers(connection, record.table) and (may_be_empty or _any(connection, record.table, span))
        return None if is_there else Loss(f"its table {name} was emptied", rows, 0, _EMPTY_HINT)
    there = _count(connection, record.table, span) if _has_numbers(connection, record.table) else 0
    return Loss(f"its table {name} is not the one that it was", rows, there) if there < rows else None


def find_remains(connection: psycopg.Connection, record: RecordTables, scope: Scope) -> Iterator[RemainingRows]:
    """What remains of every range that the table got, except those whose loss was accepted."""
    given = record.given_ranges(connection, scope)
    _, span = record.given(connection, scope)
    any_row = span is not None and _has_numbers(connection, record.table) and _any(connection, record.table, span)
    for one in given:
        missing = one.record.held.count or 0
        if any_row:
            odd = count_in_table(connection, record.table, numbers_of(one.record), one.record.rows, other_than=1)
            missing = sum(1 for _, times in odd if times == 0)
        yield RemainingRows(one, missing)


def accept_loss(connection: psycopg.Connection, record: RecordTables, scope: Scope) -> None:
    """Gives up ranges with missing rows: they count as delivered and are not checked again. One transaction."""
    with connection.transaction():
        now = _locked(connection, record.table)
        lacking = (r.given for r in find_remains(connection, record, scope) if not r.is_whole)
        record.give_up(connection, [(g.lane, int(g.record.rows.lo)) for g in lacking])
        record.set_identity(connection, now)


def _locked(connection: psycopg.Connection, table: TableName) -> PostgresTable | None:
    """Locks the table, so that nobody truncates or drops it until the transaction ends."""
    if read_identity(connection, table) is None:
        return None
    connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS_MAX}s'".encode())
    connection.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE".encode())
    return read_identity(connection, table)


def _has_numbers(connection: psycopg.Connection, table: TableName) -> bool:
    shape = read_shape(connection, table)
    return shape is not None and SEQ_COLUMN in shape.columns


def has_index(connection: psycopg.Connection, table: TableName) -> bool | None:
    """Whether an index begins with the sequence number; None if the table has no such column."""
    found = connection.execute(_COLUMN, (table.schema, table.name, SEQ_COLUMN)).fetchone()
    return None if found is None else bool(found[0])


def has_rows(connection: psycopg.Connection, table: TableName) -> bool:
    """Whether there is any row with a sequence number. With an index it looks for the newest one: rows that were
    deleted by age are at the other end, and until a VACUUM a scan would read all of them. Without an index it takes the
    first row of a scan. A table that has lost the column counts as filled: `prepare` reports what is wrong."""
    indexed = has_index(connection, table)
    if indexed is None:
        return True
    newest = f"ORDER BY {_NUMBER} DESC" if indexed else ""
    found = connection.execute(f"SELECT FROM {table} WHERE {_NUMBER} IS NOT NULL {newest} LIMIT 1".encode())
    return found.fetchone() is not None


def _any(connection: psycopg.Connection, table: TableName, span: SeqRange) -> bool:
    found = connection.execute(
        f"SELECT EXISTS (SELECT FROM {escaped(table)} WHERE {_NUMBER} BETWEEN %s AND %s)".encode(), (span.lo, span.hi)
    ).fetchone()
    return bool(found and found[0])


def _count(connection: psycopg.Connection, table: TableName, span: SeqRange) -> int:
    found = connection.execute(
        f"SELECT count(DISTINCT {_NUMBER}) FROM {escaped(table)} WHERE {_NUMBER} BETWEEN %s AND %s".encode(),
        (span.lo, span.hi),
    ).fetchone()
    return int(found[0]) if found else 0
