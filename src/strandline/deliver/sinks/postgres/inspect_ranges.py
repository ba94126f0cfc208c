"""Checks what the table really holds of a range in the record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from strandline.core.errors import StorageError
from strandline.core.types import SEQ_COLUMN, SeqRange, merge_ranges
from strandline.deliver.sink import Address, Inspected, covers
from strandline.deliver.sinks.postgres import connect as connecting
from strandline.deliver.sinks.postgres.columns import TableName, quote
from strandline.deliver.sinks.postgres.connect import HoldsConnection, PostgresServer
from strandline.deliver.sinks.postgres.record import RecordTables, clip, numbers_of
from strandline.deliver.sinks.row_problems import describe_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.iceberg.number_ranges import Numbers

_NUMBER = quote(SEQ_COLUMN)


class PostgresInspector(HoldsConnection):
    """The record says which sequence numbers of a range were delivered, so each of them is looked up. A count alone
    would not do: rows of other lanes have numbers in the same range."""

    def __init__(self, server: PostgresServer, table: TableName) -> None:
        super().__init__(server, f"strandline: verify {table.name}")
        self._table = table
        self._record = RecordTables(table)

    def inspect(self, address: Address, rows: SeqRange) -> Inspected:
        with self._asking() as connection:
            try:
                return self._inspect(connection, address, rows)
            except psycopg.errors.UndefinedTable:
                return Inspected(None, None, f"the table {self._table.plain} is gone, or its record is")
            except psycopg.errors.UndefinedColumn:
                return Inspected(None, None, f"the table {self._table.plain} has no column {SEQ_COLUMN}")

    def numbers(self, address: Address, rows: SeqRange) -> pa.Int64Array:
        """The lane's delivered sequence numbers that the table holds, sorted; one on two rows appears twice."""
        import numpy as np
        import pyarrow as pa

        with self._asking() as connection:
            delivered = self._delivered(connection, address, rows)
            if delivered is None:
                return pa.array([], pa.int64())
            found = count_in_table(connection, self._table, delivered, rows, other_than=1)
        times = np.ones(len(delivered), np.int64)
        for number, count in found:
            times[np.searchsorted(delivered, number)] = count
        return pa.array(np.repeat(delivered, times), pa.int64())

    @contextmanager
    def _asking(self) -> Iterator[psycopg.Connection]:
        """Raises StorageError if the server does not answer, or not in time: it may have to read the whole table."""
        try:
            with connecting.time_limit(self._connect(), connecting.COUNT_SECONDS_MAX) as connection:
                yield connection
        except psycopg.Error as e:
            self.close()
            raise StorageError(self._server.scrub(f"{self._server.address}: {connecting.explain(e)}")) from None

    def _inspect(self, connection: psycopg.Connection, address: Address, rows: SeqRange) -> Inspected:
        delivered = self._delivered(connection, address, rows)
        if delivered is None:
            return Inspected(None, None, f"the record beside {self._table.plain} does not know of {rows}")
        odd = count_in_table(connection, self._table, delivered, rows, other_than=1)
        missing = [number for number, times in odd if times == 0]
        twice = [number for number, times in odd if times > 1]
        count = len(delivered) + sum(times - 1 for _, times in odd)
        foreign = 0 if address.partition else self._count(connection, rows) - count
        return Inspected(count, None, describe_rows(rows, len(delivered), missing, twice, foreign) or None)

    def _delivered(self, connection: psycopg.Connection, address: Address, rows: SeqRange) -> Numbers | None:
        """The sequence numbers that were delivered; None if the record does not cover the range."""
        import numpy as np

        lane = self._record.lane(connection, address)
        there = [] if lane is None else self._record.overlapping(connection, lane, rows)
        if not covers(merge_ranges(r.rows for r in there), rows):
            return None
        return np.concatenate([clip(numbers_of(r), rows) for r in there])

    def _count(self, connection: psycopg.Connection, rows: SeqRange) -> int:
        found = connection.execute(
            f"SELECT count(*) FROM {escaped(self._table)} WHERE {_NUMBER} BETWEEN %s AND %s".encode(),
            (rows.lo, rows.hi),
        ).fetchone()
        return int(found[0]) if found else 0


def count_in_table(
    connection: psycopg.Connection, table: TableName, numbers: Numbers, rows: SeqRange, *, other_than: int
) -> list[tuple[int, int]]:
    """The sequence numbers inside `rows` that are not in the table `other_than` times, and how often they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.cast(pa.array(numbers), pa.string())
    joined: Any = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), ",")
    wanted = f"{{{joined[0].as_py()}}}"
    found = connection.execute(
        f"SELECT w.number, count(t.{_NUMBER}) FROM unnest(%s::bigint[]) AS w (number) "
        f"LEFT JOIN {escaped(table)} t ON t.{_NUMBER} = w.number AND t.{_NUMBER} BETWEEN %s AND %s "
        f"GROUP BY w.number HAVING count(t.{_NUMBER}) <> %s ORDER BY w.number".encode(),
        (wanted, rows.lo, rows.hi, other_than),
    )
    return [(int(number), int(times)) for number, times in found]


def escaped(table: TableName) -> str:
    """For statements with parameters, where a percent sign begins a placeholder."""
    return str(table).replace("%", "%%")
