"""Sinks: their settings, health and leases, and which of them have something to do.

The result of a change says whether it was made. The lease is a fence: a deliverer checks it (`leases.holds`) in the
transaction that writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core.delivery_types import ChunkState, PeerKind, SinkId, SinkRecord, SinkState
from strandline.core.errors import DestinationTaken, NoSuchSink, RefusedError
from strandline.core.types import DatasetId, Seq, seq_or_none
from strandline.ledger.engine import from_row, insert_into, utc_now
from strandline.ledger.ingest import blocks
from strandline.ledger.leases import LeaseColumns
from strandline.ledger.replicate import sites
from strandline.ledger.row_memo import RowMemo
from strandline.ledger.schema.core import block, chunk, intent, lane, sink


def options_text(options: Mapping[str, str]) -> str:
    return json.dumps(dict(options), sort_keys=True)


def _sink(row: Any) -> SinkRecord:
    options, peer = json.loads(row.options), None if row.peer is None else PeerKind(row.peer)
    return from_row(SinkRecord, row, dataset=row.dataset_id, options=options, state=SinkState(row.state), peer=peer)


def add(
    connection: sa.Connection,
    *,
    instance: str,
    name: str,
    kind: str,
    dataset: DatasetId,
    options: Mapping[str, str],
    destination: str,
    start: Seq | None,
    planned: Seq | None = None,
    generation: int = 1,
    peer: PeerKind | None = None,
    from_now: bool | None = None,
) -> SinkRecord:
    """Adds a sink; `RefusedError` for a taken name or destination. `planned`: for a sink that another ledger has
    delivered to. `generation`: above 1 if the destination's own record says so."""
    added = connection.execute(
        insert_into(connection, sink)
        .values(
            instance=instance,
            name=name,
            kind=kind,
            dataset_id=dataset,
            generation=generation,
            options=options_text(options),
            destination=destination,
            start=start,
            planned=planned or start,
            state=SinkState.ACTIVE.value,
            failures=0,
            created_at=utc_now(),
            peer=None if peer is None else peer.value,
            from_now=from_now,
        )
        .on_conflict_do_nothing()
        .returning(sink)
    ).one_or_none()
    if added is not None:
        return _sink(added)
    if find(connection, name) is not None:
        raise RefusedError(
            f"a sink named {name} exists already", hint="Choose another name, or change that one with `sink update`."
        )
    raise destination_taken(
        next((s.name for s in list_sinks(connection) if s.destination == destination), "another"), destination
    )


def destination_taken(other: str, destination: str) -> DestinationTaken:
    return DestinationTaken(
        f"sink {other} delivers to {destination} already",
        hint="Two sinks must not share a destination: choose another place, or remove that sink.",
        sink=other,
    )


def find(connection: sa.Connection, name: str) -> SinkRecord | None:
    row = connection.execute(sa.select(sink).where(sink.c.name == name, sink.c.removed_at.is_(None))).one_or_none()
    return None if row is None else _sink(row)


def get(connection: sa.Connection, name: str) -> SinkRecord:
    record = find(connection, name)
    if record is None:
        names = ", ".join(s.name for s in list_sinks(connection)) or "none yet"
        raise NoSuchSink(f"there is no sink {name}", hint=f"Sinks here: {names}.")
    return record


_LISTED = RowMemo(_sink)
_PRESENT = sa.select(sink).where(sink.c.removed_at.is_(None)).order_by(sink.c.name)


def list_sinks(connection: sa.Connection) -> list[SinkRecord]:
    return _LISTED.read(connection.execute(_PRESENT).all())


def of_dataset(connection: sa.Connection, dataset: DatasetId) -> list[SinkRecord]:
    return [_sink(r) for r in connection.execute(_PRESENT.where(sink.c.dataset_id == dataset))]


def list_with_removed(connection: sa.Connection, dataset: DatasetId) -> list[tuple[SinkRecord, bool]]:
    """The dataset's sinks, and whether each was removed: the destination of a removed sink still has its rows."""
    rows = connection.execute(sa.select(sink).where(sink.c.dataset_id == dataset).order_by(sink.c.name, sink.c.id))
    return [(_sink(r), r.removed_at is not None) for r in rows]


def _change(connection: sa.Connection, id: SinkId, *where: sa.ColumnElement[bool], **values: Any) -> bool:
    changed = connection.execute(
        sink.update().where(sink.c.id == id, sink.c.removed_at.is_(None), *where).values(**values)
    )
    return changed.rowcount == 1


def set_options(
    connection: sa.Connection,
    id: SinkId,
    options: Mapping[str, str],
    destination: str,
    *,
    expected: Mapping[str, str] | None = None,
) -> bool:
    """Sets the options of the next intent; an open intent keeps its own. The change may have fixed what made the sink
    fail, so it is retried at once, and `failing_since` is cleared. With `expected`, only if the sink still has these
    options: of two people who change it at the same time, neither undoes the other's change."""
    for other in list_sinks(connection):
        if other.destination == destination and other.id != id:
            raise destination_taken(other.name, destination)
    unchanged = [] if expected is None else [sink.c.options == options_text(expected)]
    text = options_text(options)
    return _change(connection, id, *unchanged, options=text, destination=destination, retry_at=None, failing_since=None)


def note_peer(connection: sa.Connection, id: SinkId, peer: PeerKind) -> bool:
    """Stores the kind of peer. A sink that was claimed from a receiver never changes to another kind."""
    return _change(connection, id, sink.c.peer.is_distinct_from(PeerKind.RECEIVER.value), peer=peer.value)


def pause(connection: sa.Connection, id: SinkId) -> bool:
    """Also pauses a stopped sink and keeps its reason: it gets no rows either way, and a person can choose whether
    retention holds rows for paused sinks."""
    return _change(connection, id, sink.c.state != SinkState.PAUSED.value, state=SinkState.PAUSED.value)


_NO_FAILURES = {"reason": None, "failures": 0, "retry_at": None, "failing_since": None}
_HEALTHY = {"state": SinkState.ACTIVE.value, **_NO_FAILURES}


def resume(connection: sa.Connection, id: SinkId) -> bool:
    return _change(connection, id, sink.c.state != SinkState.ACTIVE.value, **_HEALTHY)


def stop(connection: sa.Connection, id: SinkId, reason: str) -> bool:
    return _change(connection, id, state=SinkState.STOPPED.value, reason=reason, retry_at=None)


def failed(
    connection: sa.Connection, id: SinkId, reason: str, retry_at: datetime | None, since: datetime | None = None
) -> bool:
    """Records a failed tick; `since` is the time of the first failure in a row. The reason of a stopped sink stays."""
    not_stopped = sink.c.state != SinkState.STOPPED.value
    more = sink.c.failures + 1
    return _change(connection, id, not_stopped, failures=more, reason=reason, retry_at=retry_at, failing_since=since)


def retry_now(connection: sa.Connection, id: SinkId) -> bool:
    """Ends the backoff at a person's request, and keeps the number of failures."""
    return _change(connection, id, retry_at=None)


def clear_failures(connection: sa.Connection, id: SinkId) -> bool:
    """Clears the failures; True if there were any."""
    has_failures = sa.or_(sink.c.failures > 0, sink.c.reason.is_not(None), sink.c.retry_at.is_not(None))
    not_stopped = sink.c.state != SinkState.STOPPED.value
    return _change(connection, id, not_stopped, has_failures, **_NO_FAILURES)


def remove(connection: sa.Connection, id: SinkId) -> bool:
    """Removes the sink. Its lanes and intents stay as history, even open ones: all queries for open intents, watermarks
    or work start from sinks that were not removed. A new sink with this name gets a new row."""
    return _change(connection, id, removed_at=utc_now(), **leases.no_lease)


def new_generation(connection: sa.Connection, id: SinkId, generation: int, start: Seq | None) -> SinkRecord:
    """Starts a new generation after `start`, with new lanes, and fences off the deliverer of the old one."""
    values = {"generation": generation, "start": start, "planned": start, **_HEALTHY, **leases.no_lease}
    if not _change(connection, id, sink.c.generation < generation, **values):
        raise RefusedError(
            f"generation {generation} is not above the one that the sink has, or the sink was removed",
            hint="See `strandline sink show`.",
        )
    return _sink(connection.execute(sa.select(sink).where(sink.c.id == id)).one())


leases = LeaseColumns(sink.c.lease_token, sink.c.lease_until, sink.c.removed_at.is_(None))  # who delivers to a sink


def forget_leases(connection: sa.Connection) -> int:
    """Ends all leases, and marks all planned chunks as offered, for a resync. Returns how many leases were held.
    Whoever held a lease may have sent more chunks than the restored ledger records as offered."""
    connection.execute(chunk.update().where(chunk.c.state == ChunkState.PLANNED.value).values(offered=True))
    return leases.release_all(connection)


@dataclass(frozen=True, slots=True)
class SinkWork:
    """The work that waits for a sink."""

    sink: SinkRecord
    sealed: Seq | None
    open_intents: int
    behind: bool  # some lane without an open intent is below `planned`: the next plan includes it
    oldest_unplanned: datetime | None  # when the first row that can be planned was published; None if there is none
    unplanned_rows: int


# The databases use a partial index only if its condition is a literal in the query, not a parameter.
_published, _active = (sa.literal_column(f"'{state}'", sa.Text) for state in ("published", "active"))


def _above(dataset: Any, above: Any, sealed: Any) -> list[sa.ColumnElement[bool]]:
    return [
        block.c.dataset_id == dataset,
        block.c.state == _published,
        block.c.hi > sa.func.coalesce(above, 0),
        block.c.hi <= sealed,
    ]


def rows_above(dataset: Any, above: Any, sealed: Any) -> sa.ScalarSelect[int]:
    """The settled rows above a sequence number, which may lie within a block. A recovered range counts in full, because
    nobody knows how many of its sequence numbers were used."""
    all_rows = sa.func.coalesce(block.c.row_count, block.c.hi - block.c.lo + 1)
    rest = block.c.hi - sa.func.coalesce(above, 0)
    rows = sa.func.coalesce(sa.func.sum(sa.case((all_rows < rest, all_rows), else_=rest)), 0)
    return sa.select(sa.cast(rows, sa.BigInteger)).where(*_above(dataset, above, sealed)).scalar_subquery()


def first_published_above(dataset: Any, above: Any, sealed: Any) -> sa.ScalarSelect[datetime]:
    return (
        sa.select(block.c.changed_at)
        .where(*_above(dataset, above, sealed))
        .order_by(block.c.hi)
        .limit(1)
        .scalar_subquery()
    )


def _due_query() -> sa.Select[Any]:
    due = (
        sa.select(sink.c.id, blocks.sealed_of(sink.c.dataset_id).scalar_subquery().label("sealed"))
        .where(sink.c.state == _active, sink.c.removed_at.is_(None), sites.is_leading())
        .cte("due")
        .prefix_with("MATERIALIZED")  # the seal is used several times and computed once
    )
    # Few lanes have an open intent, usually none. So the query starts from open intents, not from all lanes.
    busy = sa.select(intent.c.lane_id).where(intent.c.closed_at.is_(None)).cte("busy").prefix_with("MATERIALIZED")
    opened = (
        sa.select(lane.c.sink_id, lane.c.generation, sa.func.count().label("intents"))
        .join_from(busy, lane, busy.c.lane_id == lane.c.id)
        .group_by(lane.c.sink_id, lane.c.generation)
        .subquery("opened")
    )
    idle_lane = [
        lane.c.sink_id == sink.c.id,
        lane.c.generation == sink.c.generation,
        ~sa.exists().where(intent.c.lane_id == lane.c.id, intent.c.closed_at.is_(None)).correlate(lane),
    ]
    behind = sa.or_(
        sa.exists().where(*idle_lane, lane.c.mark < sink.c.planned).correlate(sink),
        sink.c.planned.is_not(None) & sa.exists().where(*idle_lane, lane.c.mark.is_(None)).correlate(sink),
    )
    where = (sink.c.dataset_id, sink.c.planned, due.c.sealed)
    return (
        sa.select(
            sink,
            due.c.sealed,
            sa.func.coalesce(opened.c.intents, 0).label("open_intents"),
            behind.label("behind"),
            first_published_above(*where).label("oldest_unplanned"),
            rows_above(*where).label("unplanned_rows"),
        )
        .join_from(due, sink, sink.c.id == due.c.id)
        .outerjoin(opened, (opened.c.sink_id == sink.c.id) & (opened.c.generation == sink.c.generation))
        .order_by(sink.c.id)
    )


_DUE = _due_query()


def due(connection: sa.Connection) -> list[SinkWork]:
    """Every active sink, with the work that waits for it. An idle tick runs only this one statement. Sinks in backoff
    are included, because their other lanes may have new rows."""
    return [
        SinkWork(_sink(r), seq_or_none(r.sealed), r.open_intents, bool(r.behind), r.oldest_unplanned, r.unplanned_rows)
        for r in connection.execute(_DUE)
    ]
