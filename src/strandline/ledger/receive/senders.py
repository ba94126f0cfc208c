"""Senders: who has claimed a source and so owns its lanes, and which of a sender's bodies the ledger has, and where.

A lane belongs to the token that claimed its source and to the tokens that replace it (`tokens`). Nobody else can send
rows, or claim a range, in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core.forward_protocol import LaneName, RangeIdentity
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.types import SEQ_MAX, DatasetId, Seq, SeqRange
from strandline.ledger.engine import from_row, insert_into, slices, utc_now
from strandline.ledger.receive.ranges import KnownBody, first_overlapping_bodies, lane_key, lanes_of
from strandline.ledger.receive.tokens import TokenId
from strandline.ledger.schema.core import dataset as dataset_table
from strandline.ledger.schema.receive import api_token, receive_batch, received, source, source_lane

SourceKey = tuple[int, str, str]  # our dataset, the sender's lake, and the sender's dataset
_SOURCE_KEY = (source.c.dataset_id, source.c.lake, source.c.source_dataset)


@dataclass(frozen=True, slots=True)
class NotOwner:
    """Nothing was recorded: the lane belongs to another token."""


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """Nothing was recorded: the lane's generation is not the one that was claimed last."""

    generation: int | None  # the one that was claimed last; None if nothing was claimed


@dataclass(frozen=True, slots=True)
class SenderPassed:
    """Nothing was recorded: another site leads the sender's lake by now."""

    term: int


_SOURCES = sa.select(source).where(sa.tuple_(*_SOURCE_KEY).in_(sa.bindparam("keys", expanding=True)))


def find_sources(connection: sa.Connection, keys: Iterable[SourceKey], *, lock: bool = False) -> dict[SourceKey, Any]:
    """The records that exist; `lock` locks them until the transaction ends."""
    query = _SOURCES.order_by(source.c.id).with_for_update(read=True) if lock else _SOURCES
    records: dict[SourceKey, Any] = {}
    for part in slices(sorted(keys), len(_SOURCE_KEY)):
        for row in connection.execute(query, {"keys": part}):
            records[row.dataset_id, row.lake, row.source_dataset] = row
    return records


def check_sender(
    record: Any | None, identity: RangeIdentity, owner: TokenId
) -> NotOwner | NotClaimed | SenderPassed | None:
    """None if a token of this owner may send new rows to the lane, else why not. A record without an owner is from
    before owners were stored: the next token that claims it becomes its owner."""
    lane = identity.lane
    if record is None:
        return NotClaimed(None)
    if record.owner_id not in (None, owner) or record.instance != lane.instance:
        return NotOwner()
    if identity.term is not None and identity.term < record.term:
        return SenderPassed(record.term)
    return None if record.generation == lane.generation and record.owner_id else NotClaimed(record.generation)


def owner_of(connection: sa.Connection, token: TokenId) -> TokenId:
    owner = connection.execute(_OWNER, {"id": token}).scalar()
    return token if owner is None else TokenId(owner)


_OWNER = sa.select(api_token.c.owner_id).where(api_token.c.id == sa.bindparam("id"))


@dataclass(frozen=True, slots=True)
class PlacedBody:
    rows: SeqRange
    count: int
    digest: str
    first: Seq | None  # our sequence number of its first row; None until its batch is published, or without rows
    spool: str | None  # its file, until it is removed
    is_discarded: bool = False  # a person gave it up


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Which sink feeds a dataset of ours from a dataset of its lake, and the highest generation and term that it
    claimed."""

    lake: str
    dataset: str  # its name in that lake
    instance: str
    table_uuid: str
    generation: int
    owner: TokenId | None  # None: claimed before owners were stored, and not since
    term: int = FIRST_TERM


def find_claim(connection: sa.Connection, dataset: DatasetId, lake: str, source_dataset: str) -> SourceRecord | None:
    records = find_sources(connection, [(dataset, lake, source_dataset)])
    return next(map(_record, records.values()), None)


def _record(row: Any) -> SourceRecord:
    return from_row(SourceRecord, row, dataset=row.source_dataset, owner=row.owner_id)


def claim(connection: sa.Connection, dataset: DatasetId, wanted: SourceRecord) -> SourceRecord | None:
    """Writes the record if there is none and this is generation 1. If the record has this owner and instance, raises
    its generation by at most one, and its term. It never lowers them, and a sender of a lower term raises neither.
    Returns the record as it is then, which may be another sink's; None if there was none and this is not generation
    1."""
    generation, owner = wanted.generation, wanted.owner
    own = {"instance": wanted.instance, "table_uuid": wanted.table_uuid}
    at = {"dataset_id": dataset, "lake": wanted.lake, "source_dataset": wanted.dataset}
    if generation == 1:
        connection.execute(
            insert_into(connection, source)
            .values(**at, **own, generation=1, term=wanted.term, owner_id=owner, created_at=utc_now())
            .on_conflict_do_nothing()
        )
    connection.execute(
        source.update()
        .where(
            *(source.c[name] == value for name, value in (at | own).items()),
            sa.or_(source.c.owner_id.is_(None), source.c.owner_id == owner),
            source.c.generation.in_((generation, generation - 1)),
            source.c.term <= wanted.term,
        )
        .values(generation=generation, term=wanted.term, owner_id=owner)
    )
    return find_claim(connection, dataset, wanted.lake, wanted.dataset)


@dataclass(frozen=True, slots=True)
class Released:
    instance: str
    generation: int
    # It had sent no rows, so any sink may claim the source from generation 1. Otherwise only a sink with the same
    # identity may, in the same generation or the next, with whichever token comes first.
    forgotten: bool


def release(connection: sa.Connection, dataset: DatasetId, lake: str, source_dataset: str) -> Released | None:
    """Takes a claim away from its token, by a person's decision. None if there is no claim."""
    at = {"dataset_id": dataset, "lake": lake, "source_dataset": source_dataset}
    where = [source.c[name] == value for name, value in at.items()]
    record = connection.execute(sa.select(source).where(*where).with_for_update()).one_or_none()
    if record is None:
        return None
    sent_body = connection.execute(
        sa.select(received.c.id)
        .join_from(received, source_lane, source_lane.c.id == received.c.lane_id)
        .where(*(source_lane.c[name] == value for name, value in at.items()), source_lane.c.instance == record.instance)
        .limit(1)
    ).first()
    connection.execute(source.delete().where(*where))
    if sent_body is not None:
        kept = {name: record._mapping[name] for name in ("instance", "table_uuid", "generation", "term", "created_at")}
        connection.execute(source.insert().values(**at, **kept))
    return Released(record.instance, record.generation, forgotten=sent_body is None)


@dataclass(frozen=True, slots=True)
class ClaimOf:
    dataset: str
    record: SourceRecord
    token: str | None  # the name of the owner


def list_claims(connection: sa.Connection) -> list[ClaimOf]:
    """All claims, by dataset, lake and the sender's dataset; without datasets that were dropped."""
    rows = connection.execute(
        sa.select(source, dataset_table.c.name.label("name"), api_token.c.name.label("token"))
        .join_from(source, dataset_table, dataset_table.c.id == source.c.dataset_id)
        .join(api_token, api_token.c.id == source.c.owner_id, isouter=True)
        .where(dataset_table.c.dropped_at.is_(None))
        .order_by(dataset_table.c.name, source.c.lake, source.c.source_dataset)
    )
    return [ClaimOf(row.name, _record(row), row.token) for row in rows]


@dataclass(frozen=True, slots=True)
class BodiesOfLane:
    bodies: tuple[KnownBody, ...]  # in order
    more: bool  # there may be more after the last of these


def held_bodies(
    connection: sa.Connection,
    dataset: DatasetId,
    sender: LaneName,
    lanes: Sequence[tuple[str, Seq | None]],
    *,
    bodies_max: int,
) -> list[BodiesOfLane]:
    """For each partition of the sender (ignoring the partition in `sender`), the bodies with a sequence number above
    the given one (None: all). At most `bodies_max` in all; the first lane that has more gets at least one of them."""
    name = (dataset, sender.lake, sender.dataset, sender.instance, sender.generation)
    ids = lanes_of(connection, {(*name, partition) for partition, _ in lanes})
    asked = [(ids.get((*name, partition)), after or 0) for partition, after in lanes]
    # A partition that is asked for twice is read once, from the lower sequence number.
    lowest: dict[int, int] = {}
    for id, after in asked:
        if id is not None and after < SEQ_MAX:
            lowest[id] = min(after, lowest.get(id, after))
    wanted = [(id, SeqRange(Seq(after + 1), SEQ_MAX)) for id, after in sorted(lowest.items())]
    bodies, more = first_overlapping_bodies(connection, wanted, bodies_max)
    return [
        BodiesOfLane(
            tuple(sorted((b for b in bodies.get(id or 0, {}).values() if b.rows.hi > after), key=lambda b: b.rows)),
            id in more,
        )
        for id, after in asked
    ]


def list_placed(
    connection: sa.Connection, dataset: DatasetId, lane: LaneName, lo: Seq, hi: Seq, limit: int
) -> list[PlacedBody]:
    """The lane's bodies that overlap lo..hi, in order, at most `limit`."""
    lanes = lanes_of(connection, [lane_key(dataset, lane)])
    if not lanes:
        return []
    [id] = lanes.values()
    begin = connection.scalar(
        sa.select(sa.func.max(received.c.lo)).where(received.c.lane_id == id, received.c.lo <= lo)
    )
    rows = connection.execute(
        sa.select(received, receive_batch.c.lo.label("batch_lo"), receive_batch.c.ending)
        .join_from(received, receive_batch, receive_batch.c.id == received.c.batch, isouter=True)
        .where(received.c.lane_id == id, received.c.lo >= (begin or lo), received.c.lo <= hi, received.c.hi >= lo)
        .order_by(received.c.lo)
        .limit(limit)
    )
    return [
        PlacedBody(
            SeqRange(Seq(r.lo), Seq(r.hi)),
            r.rows,
            r.digest,
            None if r.batch_lo is None else Seq(r.batch_lo + r.place),
            r.spool if r.spool_removed_at is None else None,
            r.ending == "discarded",
        )
        for r in rows
    ]
