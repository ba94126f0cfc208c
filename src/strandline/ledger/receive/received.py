"""Received bodies: their identities, their content, and which of them are repeats.

A range of a sender's lane is new if it is disjoint from all ranges of the lane, and a repeat if they cover it; anything
else overlaps. A lane accepts rows only from its owner, in the generation that was claimed last (`senders`). A key of a
token is new once. Ranges are kept forever. Keys are deleted when no client can ask for them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NewType

import sqlalchemy as sa

from strandline.core.errors import LeaseOver, LedgerRefused, LedgerUnreadable, NotLeader
from strandline.core.forward_protocol import BodyIdentity, KeyIdentity, RangeIdentity
from strandline.core.roles import Role, roles_that_allow
from strandline.core.types import DatasetId, SeqRange, merge_ranges
from strandline.ledger.engine import Ledger, insert_into, slices, utc_now
from strandline.ledger.receive.ranges import KnownBody, keep_lanes, lane_key, lanes_of, overlapping_bodies
from strandline.ledger.receive.receipts import Note
from strandline.ledger.receive.senders import (
    NotClaimed,
    NotOwner,
    SenderPassed,
    SourceKey,
    check_sender,
    find_sources,
    owner_of,
)
from strandline.ledger.receive.tokens import IS_VALID, TokenId, recall
from strandline.ledger.replicate import sites
from strandline.ledger.schema import core
from strandline.ledger.schema.receive import api_token, receive_batch, receive_hold, received

ReceivedId = NewType("ReceivedId", int)

_FORGET_AT_ONCE_MAX = 500


@dataclass(frozen=True, slots=True)
class UnrecordedBody:
    """A body that is checked and spooled, and not recorded yet."""

    dataset: DatasetId
    identity: BodyIdentity
    token: TokenId  # of the sender; the body's key or lane belongs to the owner of this token
    rows: int
    digest: str
    size: int  # bytes as they were sent
    spool: str | None  # the file's name, used by no other body; None if and only if there are no rows
    spool_bytes: int


@dataclass(frozen=True, slots=True)
class New:
    id: ReceivedId


@dataclass(frozen=True, slots=True)
class Repeat:
    """Nothing was recorded: the body was received before."""

    rows: int | None  # the first answer; None if the range was cut differently then
    digest: str | None
    held: tuple[SeqRange, ...]  # the ranges of the lane that overlap it, merged; empty for a key


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Nothing was recorded: some of its sequence numbers were received before, and some were not."""

    held: tuple[SeqRange, ...]  # as in `Repeat`


@dataclass(frozen=True, slots=True)
class OtherBody:
    """Nothing was recorded: the key was used for another body."""

    digest: str


@dataclass(frozen=True, slots=True)
class BodyGone:
    """Nothing was recorded: the token was revoked or the dataset dropped since the request was checked."""

    what: Literal["token", "dataset"]


@dataclass(frozen=True, slots=True)
class OnHold:
    """Nothing was recorded: the ledger was restored, and it is unknown which bodies the table has."""


Decision = New | Repeat | Overlaps | OtherBody | BodyGone | OnHold | NotOwner | NotClaimed | SenderPassed


def record(ledger: Ledger, bodies: Sequence[UnrecordedBody]) -> list[Decision]:
    """The commit point of receiving: decides each identity; new bodies are durable when this returns. Bodies of one
    call are decided in order, so they can repeat or overlap each other, too. The caller must remove the files of bodies
    that are not new. Raises `NotLeader` or `LeaseOver` at a site that may not take rows (any more)."""
    if not bodies:
        return []
    now = utc_now()
    with ledger.write() as connection:
        tokens = connection.execute(_USABLE_TOKENS, {"ids": list({b.token for b in bodies}), "now": utc_now()}).all()
        if not all(row.leads for row in tokens):
            sites.check_leads(connection)  # raises the error that says why
        owners = {row.id: TokenId(row.owner) for row in tokens}
        decided = _record(connection, bodies, _refused_now(connection, bodies, owners), owners, now)
        ledger.write_right.check()
        return decided


def _record(
    connection: sa.Connection,
    bodies: Sequence[UnrecordedBody],
    decided: dict[int, Decision],
    owners: Mapping[int, TokenId],
    now: datetime,
) -> list[Decision]:
    live = [(n, b) for n, b in enumerate(bodies) if n not in decided]
    ranges = [(n, b, b.identity) for n, b in live if isinstance(b.identity, RangeIdentity)]
    keys = [(n, b, b.identity) for n, b in live if isinstance(b.identity, KeyIdentity)]
    # Always in this order, with lanes by id and keys sorted: so there are no deadlocks.
    if ranges:
        decided |= _record_ranges(connection, ranges, owners, now)
    if keys:
        decided |= _record_keys(connection, keys, owners, now)
    return [decided[n] for n in range(len(bodies))]


def record_found(ledger: Ledger, dataset: DatasetId, note: Note, *, spool: str, spool_bytes: int) -> Decision:
    """Records a body that was found in the spool and that the ledger does not have. Its token was valid when the body
    arrived, so the body counts even if the token was revoked since. The rest is decided as for a new request."""
    if note.owner is None:
        return NotOwner()
    with ledger.write() as connection:
        sites.check_leads(connection)
        owner = recall(connection, note.owner)
        body = UnrecordedBody(dataset, note.identity, owner, note.rows, note.digest, note.size, spool, spool_bytes)
        decided = _refused_now(connection, [body], {owner: owner})
        decided = {n: decision for n, decision in decided.items() if not isinstance(decision, OnHold)}
        return _record(connection, [body], decided, {owner: owner}, utc_now())[0]


def record_each(ledger: Ledger, bodies: Sequence[UnrecordedBody]) -> list[Decision | Exception]:
    """As `record`. If the database refuses the transaction, each body gets its own transaction, so that a body that
    cannot be recorded does not block others; its error is returned instead of a decision. If this raises, the outcome
    of all bodies is unknown."""
    try:
        return list(record(ledger, bodies))
    except (NotLeader, LeaseOver) as e:  # raised before the commit, and for every body the same
        return [e for _ in bodies]
    except _NOT_RECORDED as e:
        if len(bodies) == 1:
            return [e]
    return [decided for body in bodies for decided in record_each(ledger, [body])]


# Only errors that prove that the transaction did not land: otherwise a recorded body would look like its own repeat.
_NOT_RECORDED = (LedgerRefused, sa.exc.IntegrityError, OverflowError)

_USABLE_TOKENS = (
    sa.select(
        api_token.c.id,
        sa.func.coalesce(api_token.c.owner_id, api_token.c.id).label("owner"),
        sites.is_leading().label("leads"),  # not in a statement of its own: a group of bodies costs few of them
    )
    .where(
        api_token.c.id.in_(sa.bindparam("ids", expanding=True)),
        IS_VALID,
        api_token.c.role.in_([role.value for role in roles_that_allow(Role.WRITE)]),
    )
    .order_by(api_token.c.id)
    .with_for_update(read=True)
)
_IS_HELD = sa.exists().where(receive_hold.c.dataset_id == core.dataset.c.id).correlate(core.dataset)
_LIVE_DATASETS = (
    sa.select(core.dataset.c.id, _IS_HELD.label("is_held"))
    .where(core.dataset.c.id.in_(sa.bindparam("ids", expanding=True)), core.dataset.c.dropped_at.is_(None))
    .order_by(core.dataset.c.id)
    .with_for_update(read=True)
)


def _refused_now(
    connection: sa.Connection, bodies: Sequence[UnrecordedBody], tokens: Mapping[int, TokenId]
) -> dict[int, Decision]:
    """The decisions for bodies whose token is revoked or expired, or whose dataset is dropped or on hold. The request
    was checked before, but only this check counts: it locks token and dataset until the transaction ends."""
    rows = connection.execute(_LIVE_DATASETS, {"ids": list({b.dataset for b in bodies})})
    is_held = {row.id: row.is_held for row in rows}
    refused: dict[int, Decision] = {}
    for n, body in enumerate(bodies):
        if body.token not in tokens:
            refused[n] = BodyGone("token")
        elif body.dataset not in is_held:
            refused[n] = BodyGone("dataset")
        elif is_held[body.dataset]:
            refused[n] = OnHold()
    return refused


def find_decision(
    connection: sa.Connection, dataset: DatasetId, identity: BodyIdentity, token: TokenId, digest: str
) -> Decision | None:
    """The decision for a body that can no longer be read, if the ledger has its identity. None proves nothing: another
    process may record the same body meanwhile."""
    owner = owner_of(connection, token)
    if isinstance(identity, KeyIdentity):
        stored = _by_key(connection, [(dataset, owner, identity.key)])
        return next((_decide_key(first, digest) for first in stored.values()), None)
    claims = find_sources(connection, [(dataset, identity.lane.lake, identity.lane.dataset)])
    refused = check_sender(next(iter(claims.values()), None), identity, owner)
    if isinstance(refused, NotOwner):
        return refused
    lanes = lanes_of(connection, [lane_key(dataset, identity.lane)])
    if not lanes:
        return None
    [lane] = lanes.values()
    return _decide(identity.rows, overlapping_bodies(connection, {lane: [identity.rows]}).get(lane, {}).values())


def _values(body: UnrecordedBody, now: datetime, **identity: Any) -> dict[str, Any]:
    return {
        "dataset_id": body.dataset,
        "rows": body.rows,
        "digest": body.digest,
        "size": body.size,
        "spool": body.spool,
        "spool_bytes": body.spool_bytes,
        "received_at": now,
        **identity,
    }


# --- ranges ---

_INSERTED = received.insert().returning(received.c.id, received.c.lane_id, received.c.lo)


def _record_ranges(
    connection: sa.Connection,
    bodies: Sequence[tuple[int, UnrecordedBody, RangeIdentity]],
    owners: Mapping[int, TokenId],
    now: datetime,
) -> dict[int, Decision]:
    claims = find_sources(connection, {source_key(b, i) for _, b, i in bodies}, lock=True)
    refused = {n: check_sender(claims.get(source_key(b, i)), i, owners[b.token]) for n, b, i in bodies}
    decided: dict[int, Decision] = {n: r for n, r in refused.items() if isinstance(r, NotOwner)}
    bodies = [(n, b, i) for n, b, i in bodies if n not in decided]
    if not bodies:
        return decided
    lanes = keep_lanes(connection, {lane_key(b.dataset, i.lane) for _, b, i in bodies})
    by_lane: dict[int, list[SeqRange]] = {}
    for _, body, identity in bodies:
        by_lane.setdefault(lanes[lane_key(body.dataset, identity.lane)], []).append(identity.rows)
    received_before = overlapping_bodies(connection, by_lane)
    new: dict[tuple[int, int], int] = {}
    values = []
    for n, body, identity in bodies:
        lane, rows = lanes[lane_key(body.dataset, identity.lane)], identity.rows
        of_lane = received_before.setdefault(lane, {})
        # A repeat from an older generation changes nothing, so its sender may get that answer.
        decision = _decide(rows, of_lane.values()) or refused[n]
        if decision is not None:
            decided[n] = decision
            continue
        of_lane[rows.lo] = KnownBody(rows, body.rows, body.digest, body.size)
        new[lane, rows.lo] = n
        values.append(_values(body, now, lane_id=lane, lo=rows.lo, hi=rows.hi))
    if values:
        for row in connection.execute(_INSERTED, values):
            decided[new[row.lane_id, row.lo]] = New(ReceivedId(row.id))
    return decided


def source_key(body: UnrecordedBody, identity: RangeIdentity) -> SourceKey:
    return body.dataset, identity.lane.lake, identity.lane.dataset


def _decide(rows: SeqRange, received_before: Iterable[KnownBody]) -> Repeat | Overlaps | None:
    """None if the range is new."""
    touched = [body for body in received_before if body.rows.overlaps(rows)]
    if not touched:
        return None
    for body in touched:
        if body.rows == rows:
            return Repeat(body.count, body.digest, (rows,))
    merged = tuple(merge_ranges(body.rows for body in touched))
    if any(m.lo <= rows.lo and rows.hi <= m.hi for m in merged):
        return Repeat(None, None, merged)
    return Overlaps(merged)


# --- keys ---

_ClientKey = tuple[int, int, str]
_KEY = (received.c.dataset_id, received.c.token_id, received.c.key)


def _by_key(connection: sa.Connection, keys: Iterable[_ClientKey]) -> dict[_ClientKey, Repeat]:
    """The body of each of these keys that the ledger has, as the answer to a repeat."""
    stored: dict[_ClientKey, Repeat] = {}
    for part in slices(keys, len(_KEY)):
        query = sa.select(received.c.rows, received.c.digest, *_KEY).where(sa.tuple_(*_KEY).in_(part))
        for rows, digest, dataset, token, key in connection.execute(query):
            stored[dataset, token, key] = Repeat(rows, digest, ())
    return stored


def _decide_key(first: Repeat, digest: str) -> Repeat | OtherBody:
    return first if first.digest == digest else OtherBody(str(first.digest))


def _record_keys(
    connection: sa.Connection,
    bodies: Sequence[tuple[int, UnrecordedBody, KeyIdentity]],
    owners: Mapping[int, TokenId],
    now: datetime,
) -> dict[int, Decision]:
    first: dict[_ClientKey, tuple[int, UnrecordedBody]] = {}
    for n, body, identity in bodies:
        first.setdefault((body.dataset, owners[body.token], identity.key), (n, body))
    values = [_values(first[key][1], now, token_id=key[1], key=key[2]) for key in sorted(first)]
    inserted = connection.execute(
        insert_into(connection, received)
        .on_conflict_do_nothing(index_elements=["dataset_id", "token_id", "key"])
        .returning(received.c.id, *_KEY),
        values,
    )
    new = {(dataset, token, key): ReceivedId(id) for id, dataset, token, key in inserted}
    stored = _by_key(connection, (key for key in first if key not in new))
    decided: dict[int, Decision] = {}
    for n, body, identity in bodies:
        key = (body.dataset, owners[body.token], identity.key)
        first_n, first_body = first[key]
        if n == first_n and key in new:
            decided[n] = New(new[key])
            continue
        answer = Repeat(first_body.rows, first_body.digest, ()) if key in new else stored.get(key)
        if answer is None:
            raise LedgerUnreadable(f"the body of key {identity.key!r} exists and cannot be read")
        decided[n] = _decide_key(answer, body.digest)
    return decided


def forget_keys(ledger: Ledger, older_than: datetime) -> int:
    """Deletes bodies by key whose rows were published or discarded before that time and whose files are removed, and
    bodies without rows that came before it. Returns how many. Small transactions let others record meanwhile."""
    finished_before = (
        sa.select(receive_batch.c.id)
        .where(
            receive_batch.c.id == received.c.batch,
            sa.func.coalesce(receive_batch.c.published_at, receive_batch.c.ended_at, type_=received.c.received_at.type)
            <= older_than,
        )
        .correlate(received)
        .exists()
    )
    old = (
        sa.select(received.c.id)
        .where(
            received.c.key.is_not(None),
            received.c.received_at <= older_than,
            sa.or_(received.c.rows == 0, received.c.spool_removed_at.is_not(None) & finished_before),
        )
        .order_by(received.c.received_at)
        .limit(_FORGET_AT_ONCE_MAX)
    )
    forgotten = 0
    while True:
        with ledger.write() as connection:
            ids = connection.execute(old).scalars().all()
            if ids:
                forgotten += connection.execute(received.delete().where(received.c.id.in_(ids))).rowcount
        if len(ids) < _FORGET_AT_ONCE_MAX:
            return forgotten
