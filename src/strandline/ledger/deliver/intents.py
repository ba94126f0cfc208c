"""Intents and their chunks: what a sink was promised before anything was sent, and the outcome.

Only the holder of a sink's lease changes them, in transactions that begin with the fence. A deliverer that lost its
lease learns that from the result. A deliverer that holds its lease, but finds the ledger changed (it was restored from
a copy), gets `WatermarkMoved` and must read the ledger again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import (
    Acknowledged,
    Chunk,
    ChunkId,
    ChunkState,
    Intent,
    LaneId,
    LanePlan,
    SinkRecord,
)
from strandline.core.errors import WatermarkMoved
from strandline.core.types import Lease, Seq, SeqRange
from strandline.ledger.deliver import plans, sinks
from strandline.ledger.deliver.lanes import MakeToken, of_sink
from strandline.ledger.engine import Ledger, from_row, rows_with, slices, utc_now
from strandline.ledger.maintain import floors
from strandline.ledger.schema.core import chunk, intent, lane

_ROWS_AT_ONCE_MAX = 1000


def chunk_of(row: Any) -> Chunk:
    rows, state = SeqRange(Seq(row.lo), Seq(row.hi)), ChunkState(row.state)
    return from_row(Chunk, row, id=row.chunk_id, rows=rows, state=state, count=row.row_count)


CHUNK_COLUMNS = (
    chunk.c.id.label("chunk_id"),
    *chunk.c["lo", "hi", "state", "expected", "row_count", "withheld", "digest", "size", "found", "offered"],
)
_WITH_CHUNKS = (
    sa.select(intent, lane.c.partition, *CHUNK_COLUMNS)
    .join_from(intent, lane, lane.c.id == intent.c.lane_id)
    .join(chunk, chunk.c.intent_id == intent.c.id)
)


def _intents(rows: Iterable[Any]) -> Iterator[Intent]:
    for _, group in groupby(rows, key=lambda row: row.id):
        of_intent = list(group)
        first, chunks = of_intent[0], tuple(map(chunk_of, of_intent))
        yield from_row(Intent, first, lane=first.lane_id, options=json.loads(first.options), chunks=chunks)


def open_of(connection: sa.Connection, sink: SinkRecord) -> list[Intent]:
    """The open intents of the sink's current generation, by lane."""
    rows = connection.execute(
        _WITH_CHUNKS.where(*of_sink(sink), intent.c.closed_at.is_(None)).order_by(intent.c.lane_id, chunk.c.lo)
    )
    return list(_intents(rows))


def history(connection: sa.Connection, lane_id: LaneId) -> Iterator[Intent]:
    """Yields every intent that the lane ever had, in order, reading a few at a time."""
    query = _WITH_CHUNKS.where(intent.c.lane_id == lane_id).order_by(intent.c.until, chunk.c.lo)
    with connection.execute(query.execution_options(yield_per=_ROWS_AT_ONCE_MAX)) as rows:
        yield from _intents(rows)


def chunks_of(connection: sa.Connection, lane_id: LaneId, *, after: Seq | None, until: Seq) -> list[Chunk]:
    """The lane's chunks that overlap the bounds, in order."""
    query = sa.select(*CHUNK_COLUMNS).where(chunk.c.lane_id == lane_id, chunk.c.lo <= until).order_by(chunk.c.lo)
    if after is not None:
        query = query.where(chunk.c.hi > after)
    return list(map(chunk_of, connection.execute(query)))


def store_plan(
    ledger: Ledger,
    lease: Lease,
    sink: SinkRecord,
    *,
    until: Seq,
    lanes: Sequence[LanePlan],
    options: Mapping[str, str],
    token: MakeToken,
    left_out: Collection[str] = (),
    waits_upto: Seq | None = None,
) -> list[Intent] | None:
    """Stores the plan and returns its intents; None if the lease is lost. Lanes that are not in the plan, have no open
    intent and are not in `left_out` have no new rows up to `until`: their watermarks move there, without sending.
    `waits_upto`: the end that the planner chose, if the sink waits for followers; the sink already has the rest up to
    `until`. Raises WatermarkMoved if a follower that was added since lacks rows below that end."""
    _check_lease(lease, sink)
    plans.check(lanes, until)
    with ledger.write() as connection:
        if waits_upto is not None:
            floors.lock(connection, sink.dataset)  # whoever adds a follower waits, and then sees this promise
            plans.check_followers(connection, sink, waits_upto)
        if not sinks.leases.holds(connection, lease):
            return None
        planned = plans.write(connection, sink, until, lanes, options, token, left_out)
        return [i for i in open_of(connection, sink) if i.lane in planned] if planned else []


def _check_lease(lease: Lease, sink: SinkRecord) -> None:
    if lease.row != sink.id:
        raise ValueError("the lease is for another sink")


def acknowledge(ledger: Ledger, lease: Lease, acks: Sequence[Acknowledged]) -> bool:
    """Records the outcomes of chunks; False if the lease is lost. Idempotent; another outcome raises
    `WatermarkMoved`."""
    return ledger.change(acknowledge_in, lease, acks)


def acknowledge_in(connection: sa.Connection, lease: Lease, acks: Sequence[Acknowledged]) -> bool:
    """Records the outcomes in the caller's transaction; see `acknowledge`."""
    by_chunk = {ack.chunk: ack for ack in acks}
    if any(ack.state is ChunkState.PLANNED or by_chunk[ack.chunk] != ack for ack in acks):
        raise ValueError("a chunk has one outcome, and not the state planned")
    if not sinks.leases.holds(connection, lease):
        return False
    stored = {c.id: c for c in _chunks(connection, lease, by_chunk)}
    new = [ack for ack in by_chunk.values() if not _is_recorded(stored.get(ack.chunk), ack)]
    _settle(connection, new)
    return True


def _chunks(connection: sa.Connection, lease: Lease, ids: Iterable[ChunkId]) -> Iterator[Chunk]:
    query = (
        sa.select(*CHUNK_COLUMNS)
        .join_from(chunk, lane, lane.c.id == chunk.c.lane_id)
        .where(lane.c.sink_id == lease.row)
    )
    return map(chunk_of, rows_with(connection, query, chunk.c.id, ids))


def _is_recorded(stored: Chunk | None, ack: Acknowledged) -> bool:
    """True if the outcome is recorded, False if the chunk is still planned; `WatermarkMoved` for anything else."""
    if stored is None:
        raise WatermarkMoved("the ledger does not know a chunk that was sent", hint="It was restored: try again.")
    if stored.state is ChunkState.PLANNED:
        return False
    if stored.state is ack.state and stored.found:
        return True  # the chunk was found in the sink, and its content may not have been known then
    outcome = (stored.state, stored.count, stored.withheld, stored.digest, stored.size)
    if outcome != (ack.state, ack.count, ack.withheld, ack.digest, ack.size):
        raise WatermarkMoved(f"chunk {stored.rows} was recorded before with another outcome", hint="Try again.")
    return True


# It sets the columns that the parameters name.
_SETTLE = chunk.update().where(chunk.c.id == sa.bindparam("of"), chunk.c.state == ChunkState.PLANNED.value)


def _settle(connection: sa.Connection, acks: Sequence[Acknowledged]) -> None:
    now = utc_now()
    bound = [
        {
            "of": ack.chunk,
            "state": ack.state.value,
            "row_count": ack.count,
            "withheld": ack.withheld,
            "digest": ack.digest,
            "size": ack.size,
            "acked_at": now,
        }
        for ack in acks
    ]
    if bound and connection.execute(_SETTLE, bound).rowcount != len(bound):
        raise WatermarkMoved("another process recorded a chunk meanwhile", hint="Try again.")


def offer(ledger: Ledger, lease: Lease, chunks: Iterable[ChunkId]) -> bool:
    """Records that these chunks may be sent from now on; False if the lease is lost. For sinks that cannot say what
    they hold: a chunk that was never offered was never sent, whichever process has died since."""
    with ledger.write() as connection:
        if not sinks.leases.holds(connection, lease):
            return False
        for part in slices(chunks):
            connection.execute(
                chunk.update()
                .where(chunk.c.id.in_(part), chunk.c.state == ChunkState.PLANNED.value, ~chunk.c.offered)
                .values(offered=True)
            )
    return True


def close(ledger: Ledger, lease: Lease, sink: SinkRecord, intents: Sequence[Intent], token: MakeToken) -> bool:
    """Closes intents whose chunks are all settled, and moves the lanes' watermarks from exactly where the intents
    start; False if the lease is lost. Skips intents that are closed: the answer to a commit may have been lost."""
    _check_lease(lease, sink)
    now = utc_now()
    with ledger.write() as connection:
        if not sinks.leases.holds(connection, lease):
            return False
        still_open = _still_open(connection, sink, intents)
        moves = _moves(connection, sink, still_open, token, now)
        if moves and connection.execute(MOVE_LANE, moves).rowcount != len(moves):
            raise _moved(sink, still_open[0])
        for part in slices(i.id for i in still_open):
            connection.execute(
                intent.update().where(intent.c.id.in_(part), intent.c.closed_at.is_(None)).values(closed_at=now)
            )
    return True


def _moved(sink: SinkRecord, promised: Intent) -> WatermarkMoved:
    return WatermarkMoved(
        f"sink {sink.name}, partition {promised.partition!r}: its watermark or intent has changed in the ledger since "
        f"rows {(promised.after or 0) + 1}..{promised.until} were sent",
        hint="It was restored, or the sink was reset: try again.",
    )


def _still_open(connection: sa.Connection, sink: SinkRecord, intents: Sequence[Intent]) -> list[Intent]:
    query = sa.select(intent, lane.c.mark).join_from(intent, lane, lane.c.id == intent.c.lane_id).where(*of_sink(sink))
    stored = {row.id: row for row in rows_with(connection, query, intent.c.id, (i.id for i in intents))}
    still_open = []
    for promised in intents:
        row = stored.get(promised.id)
        if row is None or (row.lane_id, row.after, row.until) != (promised.lane, promised.after, promised.until):
            raise _moved(sink, promised)
        if row.closed_at is None and row.mark == promised.after:
            still_open.append(promised)
        elif row.closed_at is None or row.mark is None or row.mark < promised.until:
            raise _moved(sink, promised)
    return still_open


MOVE_LANE = (
    lane.update()
    .where(
        lane.c.id == sa.bindparam("of"),
        lane.c.mark.is_not_distinct_from(sa.bindparam("expected", type_=sa.BigInteger)),
    )
    .values(
        mark=sa.bindparam("until"),
        continuation=sa.bindparam("token"),
        exported=lane.c.exported + sa.bindparam("more_exported"),
        withheld=lane.c.withheld + sa.bindparam("more_withheld"),
        last_lo=sa.func.coalesce(sa.bindparam("new_lo", type_=sa.BigInteger), lane.c.last_lo),
        last_hi=sa.func.coalesce(sa.bindparam("new_hi", type_=sa.BigInteger), lane.c.last_hi),
        version=lane.c.version + 1,
        updated_at=sa.bindparam("now"),
    )
)


def _moves(
    connection: sa.Connection, sink: SinkRecord, intents: Sequence[Intent], token: MakeToken, now: datetime
) -> list[dict[str, Any]]:
    chunks: dict[int, list[Chunk]] = {}
    query = sa.select(chunk.c.intent_id, *CHUNK_COLUMNS).order_by(chunk.c.lo)
    for row in rows_with(connection, query, chunk.c.intent_id, (i.id for i in intents)):
        chunks.setdefault(row.intent_id, []).append(chunk_of(row))
    tokens = {until: token(until) for until in {i.until for i in intents}}
    moves = []
    for promised in intents:
        settled = chunks.get(promised.id, [])
        if not settled or any(c.state is ChunkState.PLANNED for c in settled):
            raise _moved(sink, promised)
        moves.append(lane_move(promised.lane, promised.after, promised.until, tokens[promised.until], settled, now))
    return moves


def lane_move(
    id: LaneId, after: Seq | None, until: Seq, token: str, settled: Sequence[Chunk], now: datetime
) -> dict[str, Any]:
    """The parameters of `MOVE_LANE`: the watermark moves from `after` to `until`, and the lane counts these chunks."""
    landed = [c for c in settled if c.state is ChunkState.LANDED]
    # The content of a range that was found in the sink may not be known. Then the rows that the lake has in it count.
    last = next((c.rows for c in reversed(landed) if c.count is None or c.count > 0), None)
    return {
        "of": id,
        "expected": after,
        "until": until,
        "token": token,
        "more_exported": sum(c.expected if c.count is None else c.count for c in landed),
        "more_withheld": sum(c.withheld or 0 for c in settled),
        "new_lo": None if last is None else last.lo,
        "new_hi": None if last is None else last.hi,
        "now": now,
    }


def abandon_open(connection: sa.Connection, sink: SinkRecord) -> int:
    """Closes the open intents of older generations, after a reset. Returns how many. Their lanes and unsettled chunks
    stay as history."""
    older = sa.select(lane.c.id).where(lane.c.sink_id == sink.id, lane.c.generation < sink.generation)
    closed = connection.execute(
        intent.update().where(intent.c.closed_at.is_(None), intent.c.lane_id.in_(older)).values(closed_at=utc_now())
    )
    return int(closed.rowcount)


def last_landed(connection: sa.Connection, sink: SinkRecord) -> dict[LaneId, list[SeqRange]]:
    """The ranges of each lane's last intent with rows: the sink must still have them."""
    landed = (chunk.c.state == "landed", sa.or_(chunk.c.row_count.is_(None), chunk.c.row_count > 0))
    last = (
        sa.select(sa.func.max(intent.c.id).label("id"))
        .join_from(intent, lane, lane.c.id == intent.c.lane_id)
        .where(
            *of_sink(sink), intent.c.closed_at.is_not(None), intent.c.until <= lane.c.mark, lane.c.last_hi.is_not(None)
        )
        .where(sa.exists().where(chunk.c.intent_id == intent.c.id, *landed).correlate(intent))
        .group_by(intent.c.lane_id)
        .subquery()
    )
    rows = connection.execute(
        sa.select(chunk.c.lane_id, chunk.c.lo, chunk.c.hi)
        .join_from(chunk, last, chunk.c.intent_id == last.c.id)
        .where(*landed)
        .order_by(chunk.c.lane_id, chunk.c.lo)
    )
    by_lane: dict[LaneId, list[SeqRange]] = {}
    for r in rows:
        by_lane.setdefault(LaneId(r.lane_id), []).append(SeqRange(Seq(r.lo), Seq(r.hi)))
    return by_lane


def first_starts(connection: sa.Connection, sink: SinkRecord) -> dict[LaneId, int]:
    """The sequence number after which the first intent of each lane starts. Lanes without intents are left out."""
    query = (
        sa.select(intent.c.lane_id, sa.func.min(sa.func.coalesce(intent.c.after, 0)).label("first"))
        .join_from(intent, lane, lane.c.id == intent.c.lane_id)
        .where(*of_sink(sink))
        .group_by(intent.c.lane_id)
    )
    return {LaneId(r.lane_id): int(r.first) for r in connection.execute(query)}


def drop_open(connection: sa.Connection, sink: SinkRecord, *, keep: Collection[LaneId] = ()) -> tuple[int, int]:
    """Drops the open intents of the current generation, for `sink recover`. The next plan skips what the sink holds, so
    chunks of theirs that landed are not sent again.

    `keep`: lanes for which the sink cannot say what it holds. There an intent is kept up to the last chunk that landed
    or may have been sent, with the sink's present options; only the rest is dropped. Returns how many intents were
    dropped and how many kept."""
    opened = open_of(connection, sink)
    begun = {i.id: until for i in opened if i.lane in keep and (until := _begun_until(i)) is not None}
    intent_rows = [r._mapping for r in rows_with(connection, sa.select(intent), intent.c.id, begun)]
    chunk_rows = [
        dict(r._mapping)
        for r in rows_with(connection, sa.select(chunk), chunk.c.intent_id, begun)
        if r.hi <= begun[r.intent_id]
    ]
    for part in slices(i.id for i in opened):
        connection.execute(chunk.delete().where(chunk.c.intent_id.in_(part)))
        connection.execute(intent.delete().where(intent.c.id.in_(part)))
    if begun:
        present = {"options": sinks.options_text(sink.options)}
        connection.execute(intent.insert(), [{**r, **present, "until": begun[r["id"]]} for r in intent_rows])
        connection.execute(chunk.insert(), chunk_rows)
    return len(opened) - len(begun), len(begun)


def _begun_until(promised: Intent) -> Seq | None:
    """The end of the last chunk that was settled or may have been sent; None if there is none."""
    begun = [c.rows.hi for c in promised.chunks if c.offered or c.state is not ChunkState.PLANNED]
    return begun[-1] if begun else None
