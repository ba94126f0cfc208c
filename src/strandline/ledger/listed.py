"""Batches as they are listed outside the ledger, so that one that was restored from an older copy learns of them again.

A list names every body of a batch with its identity, its file and its place, and is durable before the batch is
reserved; when the batch is published, it says with which numbers. Whoever finds a list that the ledger does not know
takes the batch over as it is, under its own id: the door knows by that whether it was published, and whoever is still
at it ingests the same block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from strandline.errors import RefusedError
from strandline.ledger import received
from strandline.ledger.batches import ReceiveBatchId
from strandline.ledger.engine import insert_into, slices, utc_now
from strandline.ledger.received import Body, New, ReceivedId
from strandline.ledger.schema import dataset as dataset_table
from strandline.ledger.schema_receive import api_token, receive_batch, source_lane
from strandline.ledger.schema_receive import received as received_table
from strandline.ledger.tokens import Token, TokenId
from strandline.types import DatasetId, Seq, SeqRange
from strandline.wire import Identity, KeyIdentity, LaneName, RangeIdentity


@dataclass(frozen=True, slots=True)
class TokenName:
    """A token, told from one that got its number after a restore."""

    id: int
    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ListedBody:
    """All that the ledger knows of a body."""

    identity: Identity
    token: TokenName | None
    """Whose key it is; None for a range."""
    rows: int
    digest: str
    size: int
    spool: str
    spool_bytes: int


@dataclass(frozen=True, slots=True)
class ListedBatch:
    batch_id: str
    created_at: datetime
    bodies: tuple[ListedBody, ...]
    """By place."""
    numbers: SeqRange | None
    """None while it is not known to be published."""

    @property
    def rows(self) -> int:
        return sum(body.rows for body in self.bodies)


def token_name(token: Token) -> TokenName:
    return TokenName(token.id, token.name, token.created_at)


def of_batch(connection: sa.Connection, batch: ReceiveBatchId) -> ListedBatch | None:
    """Without its numbers. None if there is none."""
    rows = connection.execute(
        sa.select(
            receive_batch.c.batch_id,
            receive_batch.c.created_at,
            *(received_table.c[n] for n in ("lo", "hi", "key", "rows", "digest", "size", "spool", "spool_bytes")),
            *(source_lane.c[n] for n in ("lake", "instance", "generation", "source_dataset", "partition")),
            api_token.c.id.label("token"),
            api_token.c.name,
            api_token.c.created_at.label("token_created_at"),
        )
        .join_from(receive_batch, received_table, received_table.c.batch == receive_batch.c.id)
        .join(source_lane, source_lane.c.id == received_table.c.lane_id, isouter=True)
        .join(api_token, api_token.c.id == received_table.c.token_id, isouter=True)
        .where(receive_batch.c.id == batch)
        .order_by(received_table.c.place)
    ).all()
    if not rows:
        return None
    bodies = []
    for r in rows:
        identity: Identity
        if r.key is None:
            lane = LaneName(r.lake, r.instance, r.generation, r.source_dataset, r.partition)
            identity, token = RangeIdentity(lane, SeqRange(Seq(r.lo), Seq(r.hi))), None
        else:
            identity, token = KeyIdentity(r.key), TokenName(r.token, r.name, r.token_created_at)
        bodies.append(ListedBody(identity, token, r.rows, r.digest, r.size, r.spool, r.spool_bytes))
    return ListedBatch(rows[0].batch_id, rows[0].created_at, tuple(bodies), None)


def unknown_batches(connection: sa.Connection, ids: Iterable[str]) -> set[str]:
    missing = set(ids)
    for some in slices(sorted(missing)):
        query = sa.select(receive_batch.c.batch_id).where(receive_batch.c.batch_id.in_(some))
        missing.difference_update(connection.execute(query).scalars())
    return missing


def unknown_files(connection: sa.Connection, names: Iterable[str]) -> set[str]:
    """Those that no body has, nor ever had as far as is remembered."""
    missing = set(names)
    for some in slices(sorted(missing)):
        query = sa.select(received_table.c.spool).where(received_table.c.spool.in_(some))
        missing.difference_update(connection.execute(query).scalars())
    return missing


def adopt(connection: sa.Connection, dataset: DatasetId, batch: ListedBatch) -> bool:
    """The batch with all of its bodies, each at its place. False if it is known already. `RefusedError`, which must end
    the transaction, where one of them came in otherwise since."""
    connection.execute(
        sa.select(dataset_table.c.id).where(dataset_table.c.id == dataset).with_for_update(key_share=True)
    ).all()
    if not unknown_batches(connection, [batch.batch_id]):
        return False
    ids = _waiting(connection, batch.bodies)
    missing = [body for body in batch.bodies if body.spool not in ids]
    decisions = received.record_in(connection, [as_body(connection, dataset, body) for body in missing], from_good=True)
    for body, decision in zip(missing, decisions, strict=True):
        if not isinstance(decision, New):
            raise RefusedError(f"batch {batch.batch_id}: {body.identity} came in with another body since")
        ids[body.spool] = decision.id
    placed = [body for body in batch.bodies if ids[body.spool] is None]
    if placed:
        raise RefusedError(f"batch {batch.batch_id}: {placed[0].identity} is in another batch already")
    values = {
        "dataset_id": dataset,
        "batch_id": batch.batch_id,
        "rows": batch.rows,
        "created_at": batch.created_at,
        "failures": 0,
    }
    if batch.numbers is not None:
        values |= {"lo": batch.numbers.lo, "hi": batch.numbers.hi, "published_at": utc_now()}
    made = connection.execute(receive_batch.insert().values(**values).returning(receive_batch.c.id)).scalar_one()
    place, places = 0, []
    for body in batch.bodies:
        places.append({"of": ids[body.spool], "in_batch": made, "at": place})
        place += body.rows
    connection.execute(_PLACE, places)
    return True


_PLACE = (
    received_table.update()
    .where(received_table.c.id == sa.bindparam("of"))
    .values(batch=sa.bindparam("in_batch"), place=sa.bindparam("at"))
)


def _waiting(connection: sa.Connection, bodies: Sequence[ListedBody]) -> dict[str, ReceivedId | None]:
    """By file, the bodies that the ledger knows; None where one is in a batch already."""
    found: dict[str, ReceivedId | None] = {}
    columns = (received_table.c.id, received_table.c.spool, received_table.c.batch)
    for some in slices([body.spool for body in bodies]):
        for id, spool, batch in connection.execute(sa.select(*columns).where(received_table.c.spool.in_(some))):
            found[spool] = ReceivedId(id) if batch is None else None
    return found


def as_body(connection: sa.Connection, dataset: DatasetId, body: ListedBody) -> Body:
    token = TokenId(0) if body.token is None else _owner(connection, body.token)
    return Body(dataset, body.identity, token, body.rows, body.digest, body.size, body.spool, body.spool_bytes)


def _owner(connection: sa.Connection, token: TokenName) -> TokenId:
    """The token; in the place of one that was made after the copy, one that nobody has: its secret is lost, and its
    keys are still taken."""
    found = connection.execute(
        sa.select(api_token.c.id).where(
            api_token.c.id == token.id, api_token.c.name == token.name, api_token.c.created_at == token.created_at
        )
    ).scalar()
    if found is not None:
        return TokenId(found)
    named = f"{token.id} {token.name} {token.created_at.isoformat()}"
    stands_for = f"lost-{hashlib.sha256(named.encode()).hexdigest()}"  # no secret has such a hash
    connection.execute(
        insert_into(connection, api_token)
        .values(name=token.name, hash=stands_for, datasets=None, created_at=token.created_at, revoked_at=utc_now())
        .on_conflict_do_nothing()
    )
    return TokenId(connection.execute(sa.select(api_token.c.id).where(api_token.c.hash == stands_for)).scalar_one())


def is_revoked(connection: sa.Connection, token: TokenName) -> bool:
    """Whether the ledger knows this very token, and that it is not good any more."""
    found = connection.execute(
        sa.select(api_token.c.revoked_at).where(
            api_token.c.id == token.id, api_token.c.name == token.name, api_token.c.created_at == token.created_at
        )
    ).one_or_none()
    return found is not None and found.revoked_at is not None


def unfinished(connection: sa.Connection) -> set[str]:
    """Batches whose list may still be needed, however old it is."""
    query = sa.select(receive_batch.c.batch_id).where(receive_batch.c.published_at.is_(None))
    return set(connection.execute(query).scalars())
