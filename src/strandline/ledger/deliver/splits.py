"""Divides a chunk that a sink refused into two chunks, before these are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import Chunk, ChunkId, ChunkState
from strandline.core.errors import WatermarkMoved
from strandline.core.types import Lease, Seq
from strandline.ledger.deliver import sinks
from strandline.ledger.deliver.intents import CHUNK_COLUMNS, chunk_of
from strandline.ledger.engine import Ledger, rows_with, slices
from strandline.ledger.schema.core import chunk, intent, lane


@dataclass(frozen=True, slots=True)
class Split:
    """A chunk lo..hi becomes lo..at and at+1..hi."""

    chunk: ChunkId
    at: Seq
    before: int  # how many of the chunk's expected rows are at or below `at`


def split(ledger: Ledger, lease: Lease, wanted: Sequence[Split]) -> dict[ChunkId, tuple[Chunk, Chunk]] | None:
    """Replaces planned chunks by their parts, in one transaction. Returns the parts of each; None if the lease is lost.
    Idempotent. No part gets the id of the divided chunk, so a late outcome of that chunk changes nothing."""
    by_chunk = {one.chunk: one for one in wanted}
    if any(by_chunk[one.chunk] != one for one in wanted):
        raise ValueError("a chunk can be split in one way only")
    with ledger.write() as connection:
        if not sinks.leases.holds(connection, lease):
            return None
        whole = [(row, by_chunk[ChunkId(row.id)]) for row in _open_chunks(connection, lease, by_chunk)]
        for row, one in whole:
            if row.state != ChunkState.PLANNED.value:
                raise _moved(one)
            if not (row.lo <= one.at < row.hi and 0 <= one.before <= row.expected):
                raise ValueError(f"chunk {row.lo}..{row.hi} cannot be split as {one}")
        if whole:
            # The upper part first: SQLite reuses the highest id once its row is deleted.
            upper = [_part(row, Seq(one.at + 1), row.hi, row.expected - one.before) for row, one in whole]
            connection.execute(chunk.insert(), upper)
            for part in slices(row.id for row, _ in whole):
                connection.execute(chunk.delete().where(chunk.c.id.in_(part)))
            connection.execute(chunk.insert(), [_part(row, row.lo, one.at, one.before) for row, one in whole])
        return _parts(connection, lease, by_chunk.values())


def _open_chunks(connection: sa.Connection, lease: Lease, ids: Iterable[ChunkId]) -> list[Any]:
    query = (
        sa.select(chunk)
        .join_from(chunk, lane, lane.c.id == chunk.c.lane_id)
        .join(intent, (intent.c.id == chunk.c.intent_id) & intent.c.closed_at.is_(None))
        .where(lane.c.sink_id == lease.row)
    )
    return list(rows_with(connection, query, chunk.c.id, ids))


def _part(whole: Any, lo: int, hi: int, expected: int) -> dict[str, Any]:
    return {
        "intent_id": whole.intent_id,
        "lane_id": whole.lane_id,
        "lo": lo,
        "hi": hi,
        "state": ChunkState.PLANNED.value,
        "expected": expected,
        "found": False,
        "split_from": whole.id,
        "offered": False,
    }


def _parts(connection: sa.Connection, lease: Lease, wanted: Iterable[Split]) -> dict[ChunkId, tuple[Chunk, Chunk]]:
    splits = list(wanted)
    query = (
        sa.select(chunk.c.split_from, *CHUNK_COLUMNS)
        .join_from(chunk, lane, lane.c.id == chunk.c.lane_id)
        .where(lane.c.sink_id == lease.row)
        .order_by(chunk.c.lo)
    )
    stored: dict[int, list[Chunk]] = {}
    for row in rows_with(connection, query, chunk.c.split_from, (one.chunk for one in splits)):
        stored.setdefault(row.split_from, []).append(chunk_of(row))
    parts: dict[ChunkId, tuple[Chunk, Chunk]] = {}
    for one in splits:
        match stored.get(one.chunk, []):
            case [low, high] if low.rows.hi == one.at and high.rows.lo == one.at + 1:
                parts[one.chunk] = low, high
            case _:
                raise _moved(one)
    return parts


def _moved(one: Split) -> WatermarkMoved:
    return WatermarkMoved(
        f"a chunk that was to be split at {one.at} has changed in the ledger since it was sent",
        hint="The ledger was restored, or the chunk was settled, or split elsewhere: try again.",
    )
