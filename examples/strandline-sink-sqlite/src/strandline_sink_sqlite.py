"""A sink of one's own: rows as JSON in a SQLite file, each chunk and the record of its range in one transaction.

What makes a repeat harmless is that record. A chunk whose range is covered by it was delivered: nothing happens, and
the answer is what was written down then. One that overlaps it is a conflict. Ranges are kept for ever, so it makes no
difference how late a deliverer comes that was taken for dead.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from strandline.core.errors import RefusedError, StorageError, UsageError
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.deliver.sink import (
    Address,
    ChunkRows,
    Claim,
    Claimed,
    Conflict,
    Held,
    HeldRange,
    Inspected,
    Landed,
    Option,
    Outcome,
    SinkContext,
    SinkKind,
    TryLater,
    Unknown,
    covers,
    term_passed,
)
from strandline.iceberg.schema.columns import Column

BUSY_SECONDS = 30.0
"""SQLite has one writer at a time: chunks wait for each other."""

_TABLES = """
CREATE TABLE IF NOT EXISTS claim (
    one INTEGER PRIMARY KEY CHECK (one = 1), lake TEXT NOT NULL, instance TEXT NOT NULL, dataset TEXT NOT NULL,
    table_uuid TEXT NOT NULL, term INTEGER NOT NULL, generation INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS lane (
    id INTEGER PRIMARY KEY, lake TEXT NOT NULL, instance TEXT NOT NULL, generation INTEGER NOT NULL,
    dataset TEXT NOT NULL, partition TEXT NOT NULL, mark INTEGER NOT NULL DEFAULT 0,
    UNIQUE (lake, instance, generation, dataset, partition)
);
CREATE TABLE IF NOT EXISTS delivered_range (
    lane INTEGER NOT NULL REFERENCES lane, lo INTEGER NOT NULL, hi INTEGER NOT NULL CHECK (hi >= lo),
    rows INTEGER NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL, PRIMARY KEY (lane, lo)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS ranges_never_overlap BEFORE INSERT ON delivered_range
WHEN EXISTS (SELECT 1 FROM delivered_range r WHERE r.lane = NEW.lane AND r.lo <= NEW.hi AND NEW.lo <= r.hi)
BEGIN SELECT RAISE(ABORT, 'the range overlaps one that was delivered'); END;
CREATE TABLE IF NOT EXISTS delivered_row (
    lane INTEGER NOT NULL REFERENCES lane, number INTEGER NOT NULL, json TEXT NOT NULL, PRIMARY KEY (lane, number)
) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS settled AS
    SELECT r.number AS _ingest_seq, l.partition, r.json FROM delivered_row r JOIN lane l ON l.id = r.lane
    WHERE r.number <= l.mark AND l.generation = (SELECT generation FROM claim);
"""
"""`settled` is for consumers: chunks land in any order, and up to its lane's mark nothing can come in between."""

_LANE = "lake = ? AND instance = ? AND generation = ? AND dataset = ? AND partition = ?"


def _key(address: Address) -> tuple[str, str, int, str, str]:
    return address.lake, address.instance, address.generation, address.dataset, address.partition


def _connect(path: str, *, create: bool = False) -> sqlite3.Connection:
    """A file that is gone is not made again by whoever happens to ask: then the sink has lost what it held."""
    mode = "rwc" if create else "rw"
    connection = sqlite3.connect(f"{Path(path).as_uri()}?mode={mode}", BUSY_SECONDS, uri=True, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")  # acknowledged is on the disk
    return connection


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _lane(connection: sqlite3.Connection, address: Address) -> int | None:
    row = connection.execute(f"SELECT id FROM lane WHERE {_LANE}", _key(address)).fetchone()
    return None if row is None else int(row[0])


def _ensure_lane(connection: sqlite3.Connection, address: Address) -> int:
    connection.execute(
        "INSERT OR IGNORE INTO lane (lake, instance, generation, dataset, partition) VALUES (?, ?, ?, ?, ?)",
        _key(address),
    )
    found = _lane(connection, address)
    if found is None:
        raise RefusedError("a lane that was just written is not there")
    return found


def _lines(chunk: ChunkRows) -> list[str]:
    return [str(line) for line in chunk.rows["line"].to_pylist()]


def _digest(lines: Sequence[str]) -> tuple[str, int]:
    text = "".join(f"{line}\n" for line in lines).encode()
    return f"sha256:{hashlib.sha256(text).hexdigest()}", len(text)


def _ranges(connection: sqlite3.Connection, address: Address, after: Seq | None) -> tuple[HeldRange, ...]:
    found = connection.execute(
        "SELECT lo, hi, rows, digest, size FROM delivered_range "
        f"WHERE lane = (SELECT id FROM lane WHERE {_LANE}) AND hi > ? ORDER BY lo",
        (*_key(address), after or 0),
    )
    return tuple(HeldRange(SeqRange(Seq(lo), Seq(hi)), rows, digest, size) for lo, hi, rows, digest, size in found)


def _delivered(connection: sqlite3.Connection, lane: int | None, rows: SeqRange) -> list[str]:
    found = connection.execute(
        "SELECT json FROM delivered_row WHERE lane = ? AND number BETWEEN ? AND ? ORDER BY number",
        (lane, rows.lo, rows.hi),
    )
    return [json for (json,) in found]


@dataclass(slots=True)
class SqliteSender:
    """Travels to the executors, and connects there on first use."""

    path: str
    term: int
    _open: sqlite3.Connection | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[type[SqliteSender], tuple[str, int]]:
        return SqliteSender, (self.path, self.term)

    def send(self, chunk: ChunkRows) -> Outcome:
        committing = False
        try:
            if self._open is None:
                self._open = _connect(self.path)
            connection = self._open
            with _writing(connection):
                settled = self._settled(connection, chunk)
                if settled is not None:
                    return settled
                (claimed,) = connection.execute("SELECT term FROM claim").fetchone()
                if claimed > self.term:
                    return TryLater(term_passed(self.path, claimed))
                landed = self._insert(connection, chunk)
                committing = True
            return landed
        except sqlite3.Error as e:
            self.close()
            # Whether a commit that failed is on the disk is not known: it is asked for before it is sent again.
            return Unknown(f"{self.path}: {e}") if committing else TryLater(f"{self.path}: {e}")

    def _settled(self, connection: sqlite3.Connection, chunk: ChunkRows) -> Outcome | None:
        """Whether the range was delivered before. Nobody can come in between: this is the only writer right now."""
        wanted = chunk.range
        there = [h for h in _ranges(connection, chunk.address, Seq(wanted.lo - 1)) if h.rows.overlaps(wanted)]
        if not there:
            return None
        if not covers(merge_ranges(h.rows for h in there), wanted):
            return Conflict(tuple(h.rows for h in there))
        if there[0].rows == wanted:
            return Landed(there[0].count or 0, there[0].digest or "", there[0].size or 0, repeat=True)
        count = len(_delivered(connection, _lane(connection, chunk.address), wanted))
        return Landed(count, "", 0, repeat=True)  # it was cut otherwise then: no digest is of exactly these rows

    def _insert(self, connection: sqlite3.Connection, chunk: ChunkRows) -> Landed:
        lane = _ensure_lane(connection, chunk.address)
        numbers, lines = chunk.rows["_ingest_seq"].to_pylist(), _lines(chunk)
        digest, size = _digest(lines)
        connection.executemany(
            "INSERT INTO delivered_row VALUES (?, ?, ?)", ((lane, n, x) for n, x in zip(numbers, lines, strict=True))
        )
        connection.execute(
            "INSERT INTO delivered_range VALUES (?, ?, ?, ?, ?, ?)",
            (lane, chunk.range.lo, chunk.range.hi, len(lines), digest, size),
        )
        return Landed(len(lines), digest, size)

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()


@dataclass(frozen=True, slots=True)
class SqliteInspector:
    """For `strandline verify`: what the file really holds of a range."""

    path: str

    def inspect(self, address: Address, rows: SeqRange) -> Inspected:
        try:
            with closing(_connect(self.path)) as connection:
                lines = _delivered(connection, _lane(connection, address), rows)
        except sqlite3.Error as e:
            raise StorageError(f"{self.path}: {e}") from e
        return Inspected(len(lines), _digest(lines)[0])

    def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class SqliteRehearsal:
    """What `send` would answer, and nothing is sent."""

    def send(self, chunk: ChunkRows) -> Outcome:
        digest, size = _digest(_lines(chunk))
        return Landed(chunk.rows.num_rows, digest, size)

    def close(self) -> None:
        return None


class SqliteSink:
    """The part on the driver."""

    form = "jsonl"
    stores_watermarks = False
    """Not for the deliverer, which believes the ranges; consumers get marks in the view `settled`."""

    def __init__(self, path: Path, term: int) -> None:
        self._path = str(path)
        self._term = term
        self.destination = f"file://{path}"

    def prepare(self, columns: Sequence[Column]) -> None:
        """JSON says itself what it holds, so any schema will do."""

    def claimed(self) -> Claimed | None:
        if not Path(self._path).exists():
            return None
        with self._asking() as connection:
            connection.executescript(_TABLES)
            row = connection.execute(
                "SELECT lake, instance, dataset, table_uuid, term, generation FROM claim"
            ).fetchone()
        return None if row is None else Claimed(Claim(*row[:5]), row[5])

    def claim(self, claim: Claim, generation: int) -> Claimed:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        with self._asking(create=True) as connection:
            connection.executescript(_TABLES)
            with _writing(connection):
                connection.execute(
                    "INSERT OR IGNORE INTO claim VALUES (1, ?, ?, ?, ?, ?, ?)",
                    (claim.lake, claim.instance, claim.dataset, claim.table_uuid, claim.term, generation),
                )
                lake, dataset = connection.execute("SELECT lake, dataset FROM claim").fetchone()
                if (lake, dataset) != (claim.lake, claim.dataset):
                    raise RefusedError(
                        f"{self._path} belongs to lake {lake}, dataset {dataset}", hint="Choose another file."
                    )
                connection.execute(
                    "UPDATE claim SET generation = max(generation, ?), term = max(term, ?)", (generation, claim.term)
                )
        found = self.claimed()
        if found is None:
            raise RefusedError(f"{self._path} was taken away while it was claimed")
        return found

    def fence(self, token: str) -> None:
        """Nothing to do: what an older deliverer still sends is a repeat, or it is refused."""

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        if not Path(self._path).exists():
            return [Held(None, ()) for _ in lanes]
        with self._asking() as connection:
            return [Held(None, _ranges(connection, address, after)) for address, after in lanes]

    def sender(self, token: str) -> SqliteSender:
        return SqliteSender(self._path, self._term)

    def set_watermarks(self, marks: Sequence[tuple[Address, Seq]]) -> None:
        with self._asking() as connection, _writing(connection):
            for address, mark in marks:
                lane = _ensure_lane(connection, address)
                connection.execute("UPDATE lane SET mark = max(mark, ?) WHERE id = ?", (mark, lane))

    def inspector(self) -> SqliteInspector:
        return SqliteInspector(self._path)

    def close(self) -> None:
        return None

    # Beyond the interface, so that `verify` compares contents and not only counts.

    def rehearsal(self, columns: Sequence[str]) -> SqliteRehearsal:
        return SqliteRehearsal()

    def comparison(self, columns: Sequence[str]) -> None:
        return None

    def name_of(self, address: Address, rows: SeqRange) -> str:
        return f"{self._path} {rows}"

    @contextmanager
    def _asking(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            with closing(_connect(self._path, create=create)) as connection:
                yield connection
        except sqlite3.Error as e:
            raise StorageError(f"{self._path}: {e}") from e


def _open(context: SinkContext) -> SqliteSink:
    given = context.options["path"]
    if not given.strip() or "\0" in given:
        raise UsageError("path is empty", hint="Name the file: --option path=FILE.")
    return SqliteSink((context.home / Path(given).expanduser()).resolve(), context.term)


KIND = SinkKind(
    options=(Option("path", "The SQLite file; relative to the settings file. A sink has a file of its own.", True),),
    open=_open,
)
