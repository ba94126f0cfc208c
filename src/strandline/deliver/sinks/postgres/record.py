"""The record beside the user's table: who delivers to it, its lanes, and every range that landed.

Ranges are never merged or removed. The database refuses a range that overlaps another of its lane. The exclusion
constraint needs no extension: lane and range are one interval, `lane * 10^19 + lo .. lane * 10^19 + hi`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from strandline.core.errors import RefusedError
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.deliver.sink import Address, Claim, Claimed, Conflict, HeldRange, Landed, OlderRows, covers
from strandline.deliver.sinks.postgres.columns import TableName, quote

if TYPE_CHECKING:
    import psycopg

    from strandline.iceberg.number_ranges import Numbers

VERSION = 3  # 2: the table's identity, and ranges that were given up; 3: the term
TABLES = ("strandline_sink", "strandline_lane", "strandline_range")

_DDL = """
CREATE TABLE IF NOT EXISTS {schema}.strandline_sink (
    table_name text PRIMARY KEY,
    lake       text NOT NULL,
    instance   text NOT NULL,
    dataset    text NOT NULL,
    table_uuid text NOT NULL,
    generation integer NOT NULL CHECK (generation >= 1),
    version    integer NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS {schema}.strandline_lane (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- SHA-256 of all that follows: an index takes texts of 2,700 bytes, and a partition may be longer.
    key        text NOT NULL UNIQUE,
    table_name text NOT NULL,
    lake       text NOT NULL,
    instance   text NOT NULL,
    generation integer NOT NULL,
    dataset    text NOT NULL,
    partition  text NOT NULL
);
CREATE TABLE IF NOT EXISTS {schema}.strandline_range (
    lane_id   bigint NOT NULL REFERENCES {schema}.strandline_lane,
    lo        bigint NOT NULL CHECK (lo >= 1),
    hi        bigint NOT NULL CHECK (hi >= lo),
    rows      bigint NOT NULL CHECK (rows >= 0 AND rows - 1 <= hi - lo),
    -- Which numbers of lo..hi: NULL is all of them. Lanes lie between each other, and the table does not say whose
    -- a row is.
    numbers   bytea CHECK (numbers IS NOT NULL OR rows - 1 = hi - lo),
    digest    text NOT NULL,
    size      bigint NOT NULL,
    landed_at timestamptz NOT NULL DEFAULT now(),
    span      numrange GENERATED ALWAYS AS (
                  numrange(lane_id * 10000000000000000000 + lo, lane_id * 10000000000000000000 + hi, '[]')) STORED,
    PRIMARY KEY (lane_id, lo),
    UNIQUE (lane_id, hi),
    EXCLUDE USING gist (span WITH &&)
);
-- What version 1 did not have.
ALTER TABLE {schema}.strandline_sink ADD COLUMN IF NOT EXISTS table_oid bigint, ADD COLUMN IF NOT EXISTS storage text;
ALTER TABLE {schema}.strandline_range ADD COLUMN IF NOT EXISTS given_up boolean NOT NULL DEFAULT false;
-- What version 2 did not have.
ALTER TABLE {schema}.strandline_sink ADD COLUMN IF NOT EXISTS term bigint NOT NULL DEFAULT 1;
UPDATE {schema}.strandline_sink SET version = {version} WHERE version < {version};
"""
PAGE_RANGES = 1000


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """Which table it is."""

    oid: int  # DROP and CREATE give another one
    storage: str  # the file, or those of all partitions: TRUNCATE gives other ones


@dataclass(frozen=True, slots=True)
class RangeRecord:
    held: HeldRange
    numbers: bytes | None

    @property
    def rows(self) -> SeqRange:
        return self.held.rows


@dataclass(frozen=True, slots=True)
class Scope:
    """What the table must hold: the rows of a generation, and those of older ones that it builds on."""

    generation: int
    older: Sequence[OlderRows]


@dataclass(frozen=True, slots=True)
class GivenRange:
    """A range and its lane."""

    lane: int
    partition: str
    record: RangeRecord


@dataclass(frozen=True, slots=True)
class RecordTables:
    """The statements on the record of one table. It is pickled with the sender."""

    table: TableName

    def _name(self, table: str) -> str:
        # Statements with parameters take a percent sign for a placeholder.
        return f"{quote(self.table.schema)}.{table}".replace("%", "%%")

    @property
    def _sinks(self) -> str:
        return self._name("strandline_sink")

    @property
    def _lanes(self) -> str:
        return self._name("strandline_lane")

    @property
    def _ranges(self) -> str:
        return self._name("strandline_range")

    def exists(self, connection: psycopg.Connection) -> bool:
        names = [f"{quote(self.table.schema)}.{name}" for name in TABLES]
        found = connection.execute("SELECT bool_and(to_regclass(n) IS NOT NULL) FROM unnest(%s::text[]) n", (names,))
        return bool(_one(found)[0])

    def is_of_this_version(self, connection: psycopg.Connection) -> bool:
        found = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'term')",
            (f"{quote(self.table.schema)}.strandline_sink",),
        )
        return bool(_one(found)[0])

    def create(self, connection: psycopg.Connection) -> None:
        """In the caller's transaction; concurrent calls wait for each other. An older record is completed."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('strandline'))")
        connection.execute(_DDL.format(schema=quote(self.table.schema), version=VERSION).encode())

    def claimed(self, connection: psycopg.Connection) -> Claimed | None:
        # Through JSON, because a record of an older version has no term.
        row = connection.execute(
            "SELECT lake, instance, dataset, table_uuid, generation, version, coalesce(to_jsonb(s) ->> 'term', '1') "
            f"FROM {self._sinks} s WHERE table_name = %s".encode(), (self.table.name,)
        ).fetchone()  # fmt: skip
        if row is None:
            return None
        if row[5] > VERSION:
            raise RefusedError(
                f"the record beside {self.table.plain} was made by a newer version of Strandline",
                hint="Deliver with that version.",
            )
        return Claimed(Claim(row[0], row[1], row[2], row[3], int(row[6])), row[4])

    def claim(self, connection: psycopg.Connection, claim: Claim, generation: int) -> None:
        connection.execute(
            f"INSERT INTO {self._sinks} (table_name, lake, instance, dataset, table_uuid, term, generation, version) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING".encode(),
            (self.table.name, *astuple(claim), generation, VERSION),
        )

    def raise_to(self, connection: psycopg.Connection, generation: int, term: int) -> None:
        """Waits for chunks that are being written in a lower term."""
        connection.execute(
            f"UPDATE {self._sinks} SET generation = GREATEST(generation, %s), term = GREATEST(term, %s) "
            "WHERE table_name = %s".encode(),
            (generation, term, self.table.name),
        )

    def hold_term(self, connection: psycopg.Connection) -> int | None:
        """The highest claimed term, locked until the caller's transaction ends. None if the claim was removed."""
        row = connection.execute(
            f"SELECT term FROM {self._sinks} WHERE table_name = %s FOR SHARE".encode(), (self.table.name,)
        ).fetchone()
        return None if row is None else int(row[0])

    def identity(self, connection: psycopg.Connection) -> PostgresTable | None:
        row = connection.execute(
            f"SELECT table_oid, storage FROM {self._sinks} WHERE table_name = %s".encode(), (self.table.name,)
        ).fetchone()
        return None if row is None or row[0] is None else PostgresTable(int(row[0]), str(row[1]))

    def set_identity(
        self, connection: psycopg.Connection, now: PostgresTable | None, *, only_first: bool = False
    ) -> None:
        """None: there is no table, and the next one that is created counts."""
        first = " AND table_oid IS NULL" if only_first else ""
        oid, storage = (None, None) if now is None else (now.oid, now.storage)
        connection.execute(
            f"UPDATE {self._sinks} SET table_oid = %s, storage = %s WHERE table_name = %s{first}".encode(),
            (oid, storage, self.table.name),
        )

    def key(self, address: Address) -> str:
        parts = [self.table.name, address.lake, address.instance, address.generation, address.dataset]
        return hashlib.sha256(json.dumps([*parts, address.partition]).encode()).hexdigest()

    def lane(self, connection: psycopg.Connection, address: Address) -> int | None:
        row = connection.execute(
            f"SELECT id FROM {self._lanes} WHERE key = %s".encode(), (self.key(address),)
        ).fetchone()
        return None if row is None else int(row[0])

    def ensure_lane(self, connection: psycopg.Connection, address: Address) -> int:
        """Runs outside of a transaction, so that no chunk waits for another because of the lane."""
        for _ in range(2):
            if (found := self.lane(connection, address)) is not None:
                return found
            values = (self.key(address), self.table.name, address.lake, address.instance, address.generation)
            connection.execute(
                f"INSERT INTO {self._lanes} (key, table_name, lake, instance, generation, dataset, partition) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING".encode(),
                (*values, address.dataset, address.partition),
            )
        if (found := self.lane(connection, address)) is None:
            raise RefusedError(f"a lane of {self.table.plain} vanishes from its record as soon as it is written")
        return found

    def put(self, connection: psycopg.Connection, lane: int, held: HeldRange, numbers: bytes | None) -> bool:
        """False if the range overlaps an existing one. Waits for a transaction that is writing an overlapping range."""
        put = connection.execute(
            f"INSERT INTO {self._ranges} (lane_id, lo, hi, rows, numbers, digest, size) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING".encode(),
            (lane, held.rows.lo, held.rows.hi, held.count, numbers, held.digest, held.size),
        )
        return put.rowcount == 1

    def overlapping(self, connection: psycopg.Connection, lane: int, rows: SeqRange) -> list[RangeRecord]:
        found = connection.execute(
            f"SELECT lo, hi, rows, digest, size, numbers FROM {self._ranges} WHERE span && numrange("
            "%(lane)s * 10000000000000000000 + %(lo)s, %(lane)s * 10000000000000000000 + %(hi)s, '[]') "
            "ORDER BY lo".encode(),
            {"lane": lane, "lo": rows.lo, "hi": rows.hi},
        )
        return [RangeRecord(HeldRange.of(*row[:5]), row[5]) for row in found]

    def held(
        self, connection: psycopg.Connection, lanes: Sequence[tuple[Address, Seq | None]]
    ) -> list[tuple[HeldRange, ...]]:
        found: list[list[HeldRange]] = [[] for _ in lanes]
        rows = connection.execute(
            "SELECT w.place, r.lo, r.hi, r.rows, r.digest, r.size "
            "FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS w (key, after, place) "
            f"JOIN {self._lanes} l ON l.key = w.key "
            f"JOIN {self._ranges} r ON r.lane_id = l.id AND r.hi > coalesce(w.after, 0) "
            "ORDER BY w.place, r.lo".encode(),
            ([self.key(address) for address, _ in lanes], [after for _, after in lanes]),
        )
        for place, *held in rows:
            found[place - 1].append(HeldRange.of(*held))
        return [tuple(f) for f in found]

    # --- the ranges that the table got, without those whose loss was accepted ---

    @property
    def _given(self) -> str:
        return (
            f"FROM {self._ranges} r JOIN {self._lanes} l ON l.id = r.lane_id "
            "WHERE l.table_name = %(table)s AND r.rows > 0 AND NOT r.given_up AND (l.generation = %(generation)s "
            "OR EXISTS (SELECT FROM unnest(%(keys)s::text[], %(above)s::bigint[], %(upto)s::bigint[]) "
            "AS o (key, above, upto) WHERE o.key = l.key AND r.lo > o.above AND r.hi <= o.upto))"
        )

    def _values(self, scope: Scope) -> dict[str, Any]:
        return {
            "table": self.table.name,
            "generation": scope.generation,
            "keys": [self.key(o.address) for o in scope.older],
            "above": [o.above for o in scope.older],
            "upto": [o.upto for o in scope.older],
        }

    def given(self, connection: psycopg.Connection, scope: Scope) -> tuple[int, SeqRange | None]:
        """How many rows, and the lowest and highest sequence number of their ranges."""
        found = connection.execute(
            f"SELECT coalesce(sum(r.rows), 0), min(r.lo), max(r.hi) {self._given}".encode(), self._values(scope)
        )
        rows, lo, hi = _one(found)
        return int(rows), None if lo is None else SeqRange(Seq(lo), Seq(hi))

    def delivered_beside(self, lane: int, rows: SeqRange, generation: int) -> tuple[str, dict[str, Any]]:
        """An SQL condition and its values: whether the generation delivered rows in other ranges than this one."""
        condition = f"EXISTS (SELECT {self._given} AND (r.lane_id, r.lo) <> (%(lane)s, %(lo)s))"
        return condition, self._values(Scope(generation, ())) | {"lane": lane, "lo": rows.lo}

    def given_ranges(self, connection: psycopg.Connection, scope: Scope) -> Iterator[GivenRange]:
        """In pages: together they may be too large for memory."""
        after = (0, 0)
        while True:
            page = connection.execute(
                f"SELECT r.lane_id, l.partition, r.lo, r.hi, r.rows, r.digest, r.size, r.numbers {self._given} "
                "AND (r.lane_id, r.lo) > (%(lane)s, %(lo)s) ORDER BY r.lane_id, r.lo LIMIT %(most)s".encode(),
                self._values(scope) | {"lane": after[0], "lo": after[1], "most": PAGE_RANGES},
            ).fetchall()
            for lane, partition, *held, numbers in page:
                yield GivenRange(lane, partition, RangeRecord(HeldRange.of(*held), numbers))
            if len(page) < PAGE_RANGES:
                return
            after = (page[-1][0], page[-1][2])

    def give_up(self, connection: psycopg.Connection, ranges: Sequence[tuple[int, int]]) -> None:
        """`ranges` are pairs of lane and lowest sequence number."""
        connection.execute(
            f"UPDATE {self._ranges} r SET given_up = true FROM unnest(%s::bigint[], %s::bigint[]) AS g (lane, lo) "
            "WHERE r.lane_id = g.lane AND r.lo = g.lo".encode(),
            ([lane for lane, _ in ranges], [lo for _, lo in ranges]),
        )


def landed(held: HeldRange, *, repeat: bool = False) -> Landed:
    return Landed(held.count or 0, held.digest or "", held.size or 0, repeat)


def settled(rows: SeqRange, there: Sequence[RangeRecord]) -> Landed | Conflict | None:
    """What all ranges of the lane that overlap the chunk mean for it: a repeat, a conflict, or None if it is new."""
    if not there:
        return None
    if not covers(merge_ranges(r.rows for r in there), rows):
        return Conflict(tuple(r.rows for r in there))
    if there[0].rows == rows:
        return landed(there[0].held, repeat=True)
    # The range was cut differently then: no digest is of exactly these rows.
    count = sum(len(clip(numbers_of(r), rows)) for r in there)
    return Landed(count, "", 0, repeat=True)


def _one(cursor: psycopg.Cursor) -> tuple[Any, ...]:
    row = cursor.fetchone()
    if row is None:
        raise RefusedError("the server returned no row for a query")
    return tuple(row)


# --- which sequence numbers of a range ---
# One byte for the width of the gaps, eight for the first number, then the gaps, compressed. That is about a byte per
# row, and takes a twentieth of the time that the server would need for a multirange of the same numbers.


def pack_numbers(numbers: Numbers, rows: SeqRange) -> bytes | None:
    import numpy as np

    if len(numbers) == len(rows):
        return None
    if len(numbers) == 0:
        return b""
    gaps = np.diff(numbers)
    width = next(w for w in (1, 2, 4, 8) if len(gaps) == 0 or int(gaps.max()) < 1 << (8 * w))
    head = bytes([width]) + int(numbers[0]).to_bytes(8, "little")
    return head + zlib.compress(gaps.astype(f"<u{width}").tobytes(), 1)


def numbers_of(record: RangeRecord) -> Numbers:
    import numpy as np

    packed = record.numbers
    if packed is None:
        # No arange to the end plus one: the highest sequence number has no successor.
        return np.arange(len(record.rows), dtype=np.int64) + np.int64(record.rows.lo)
    if packed == b"":
        return np.empty(0, np.int64)
    gaps = np.frombuffer(zlib.decompress(packed[9:]), f"<u{packed[0]}").astype(np.int64)
    return np.concatenate(([0], np.cumsum(gaps))) + np.int64(int.from_bytes(packed[1:9], "little"))


def clip(numbers: Numbers, rows: SeqRange) -> Numbers:
    return numbers[(numbers >= rows.lo) & (numbers <= rows.hi)]
