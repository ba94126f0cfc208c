"""The bodies in a batch, as a leader announces them to its followers and as a follower records them (docs/adr/0075).

A follower records the bodies of a batch before the batch's rows can be published there, and forgets them when the batch
is given up or cut out. So a site that takes over knows the bodies of the batches in its table, and of no others. It
gets the claims of their senders, too, but no secrets: a token is identified as in receipts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from strandline.core import batch_names
from strandline.core.errors import WatermarkMoved
from strandline.core.forward_protocol import BodyIdentity, KeyIdentity, RangeIdentity
from strandline.core.types import BlockHead, BlockKind, DatasetId, ItemKind, Published, Reserved, SeqRange
from strandline.ledger.engine import Ledger, slices, utc_now
from strandline.ledger.ingest import blocks
from strandline.ledger.receive import batch_receipts, receive_holds, tokens
from strandline.ledger.receive.batches import published_as
from strandline.ledger.receive.ranges import keep_lanes, lane_key, overlapping_bodies
from strandline.ledger.receive.receipts import BATCH_PREFIX, Receipt, ReceiptBody, TokenFingerprint
from strandline.ledger.receive.receive_holds import FROM_LEADER
from strandline.ledger.receive.senders import find_sources
from strandline.ledger.replicate import sites
from strandline.ledger.schema.core import block
from strandline.ledger.schema.core import dataset as dataset_table
from strandline.ledger.schema.receive import api_token, receive_batch, received, source, source_lane
from strandline.ledger.schema.replicate import followed_dataset


@dataclass(frozen=True, slots=True)
class AnnouncedClaim:
    """Which sink feeds the dataset from a dataset of its lake, as the leader has it."""

    lake: str
    dataset: str  # its name in that lake
    instance: str
    table_uuid: str
    generation: int
    term: int
    owner: TokenFingerprint | None  # None: a person released it


@dataclass(frozen=True, slots=True)
class AnnouncedBatch:
    numbers: SeqRange
    receipt: Receipt  # without bodies whose keys the leader has forgotten
    claims: tuple[AnnouncedClaim, ...]  # of the senders of these bodies


# --- at the leader ---------------------------------------------------------------------------------------------------


def read(connection: sa.Connection, dataset: DatasetId, batch_id: str) -> AnnouncedBatch | None:
    """The bodies of a batch in the table. None if they are unknown: the ledger was restored, and the resync did not
    find them."""
    published = blocks.of_batch(connection, dataset, batch_id)
    row = _batch(connection, batch_id)
    if not isinstance(published, Published) or row is None or row.dataset_id != dataset or row.ended_at is not None:
        return None
    receipt = batch_receipts.read_receipt(connection, row.id, batch_id)
    claims = tuple(map(_claim, connection.execute(_CLAIMS, {"batch": row.id})))
    return AnnouncedBatch(published.head.rows, receipt, claims)


def _batch(connection: sa.Connection, batch_id: str) -> Any | None:
    return connection.execute(sa.select(receive_batch).where(receive_batch.c.batch_id == batch_id)).one_or_none()


_CLAIMS = (
    sa.select(source, api_token.c.name.label("token_name"), api_token.c.hash.label("token_hash"))
    .join_from(source, api_token, api_token.c.id == source.c.owner_id, isouter=True)
    .where(
        sa.exists()
        .where(
            received.c.batch == sa.bindparam("batch"),
            received.c.lane_id == source_lane.c.id,
            source_lane.c.dataset_id == source.c.dataset_id,
            source_lane.c.lake == source.c.lake,
            source_lane.c.source_dataset == source.c.source_dataset,
        )
        .correlate(source)
    )
    .order_by(source.c.id)
)


def _claim(row: Any) -> AnnouncedClaim:
    owner = None if row.token_name is None else tokens.fingerprint(row.token_name, row.token_hash)
    return AnnouncedClaim(row.lake, row.source_dataset, row.instance, row.table_uuid, row.generation, row.term, owner)


# --- at a follower ---------------------------------------------------------------------------------------------------


def record_bodies(ledger: Ledger, reserved: Reserved, announced: AnnouncedBatch) -> bool:
    """Records the bodies of a received batch, before its rows can be published. False if the caller has lost the item:
    another process has it, or a cut or a promotion has abandoned it."""
    dataset = reserved.head.dataset
    with ledger.write() as connection:
        lock(connection, dataset)
        if not blocks.change_block(connection, reserved.head, "reserved", reserved.fence):
            return False
        record(connection, dataset, announced)
    return True


def record_bodies_later(ledger: Ledger, published: BlockHead, announced: AnnouncedBatch, term: int) -> bool:
    """As `record_bodies`, for a batch that was applied before its leader announced bodies. False if it was cut out.
    `term` is that of the leader that announced them. Raises RefusedError at a site that no longer follows, and
    `WatermarkMoved` if it follows another leader."""
    with ledger.write() as connection:
        lock(connection, published.dataset)
        sites.check_follows(connection)
        followed = sa.select(followed_dataset.c.term).where(followed_dataset.c.dataset_id == published.dataset)
        if connection.execute(followed).scalar() != term:
            raise WatermarkMoved(f"batch {published.batch_id}: the leader that answered (term {term}) was replaced")
        own = sa.select(block.c.id).where(block.c.id == published.id, block.c.state == "published")
        if connection.execute(own.with_for_update()).first() is None:
            return False
        record(connection, published.dataset, announced)
    return True


def lock(connection: sa.Connection, dataset: DatasetId) -> None:
    """Lets one process at a time record bodies of the dataset. Must come before any lock of a block."""
    query = sa.select(dataset_table.c.id).where(dataset_table.c.id == dataset)
    connection.execute(query.with_for_update(key_share=True)).all()


def record(connection: sa.Connection, dataset: DatasetId, announced: AnnouncedBatch) -> str | None:
    """Records a batch of the leader with its bodies, once. The caller's transaction holds `lock`, and has checked that
    the batch's block is the caller's, or published. A body that waits at this site is replaced: the leader has it in
    its table, so it must not be ingested again. If the ledger has rows of a body in another batch, that body is left
    out, the dataset's receiver is put on hold, and the reason is returned."""
    name = announced.receipt.batch_id
    if (stored := _batch(connection, name)) is not None:
        problem = _settle_stored(connection, stored, announced.numbers)
    else:
        identities = _identities(connection, dataset, announced.receipt.bodies)
        conflicting = _conflicting(connection, dataset, identities)
        recordable, problem = _delete_replaced(connection, dataset, announced.receipt.bodies, conflicting)
        batch = batch_receipts.insert_published(connection, dataset, name, announced.numbers)
        if recordable:
            placed = {"batch": batch, "spool_removed_at": utc_now()}  # its file is at the leader, if anywhere
            bodies = [(body, identities[n]) for n, body in enumerate(announced.receipt.bodies) if n in recordable]
            connection.execute(received.insert(), [_values(dataset, b, identity) | placed for b, identity in bodies])
    _store_claims(connection, dataset, announced.claims)
    if problem is not None:
        problem = f"batch {name} of the leader: {problem}"
        receive_holds.put(connection, dataset, problem)
    return problem


def _settle_stored(connection: sa.Connection, stored: Any, numbers: SeqRange) -> str | None:
    """Settles a batch from when this site led: its process may have died before that. Returns what contradicts it."""
    if stored.published_at is not None:
        return None
    if stored.ended_at is not None or stored.rows != len(numbers):
        return "it is in the table, and the ledger has its bodies in other batches"
    connection.execute(receive_batch.update().where(receive_batch.c.id == stored.id).values(**published_as(numbers)))
    return None


_NO_IDENTITY: dict[str, Any] = dict.fromkeys(("lane_id", "lo", "hi", "token_id", "key"))


def _values(dataset: DatasetId, body: ReceiptBody, identity: dict[str, Any]) -> dict[str, Any]:
    return batch_receipts.body_values(dataset, body) | identity | {"place": body.place}


def _identities(connection: sa.Connection, dataset: DatasetId, bodies: Sequence[ReceiptBody]) -> list[dict[str, Any]]:
    """The columns that identify each body in this ledger."""
    identities = [body.note.identity for body in bodies]
    owners = sorted({b.note.owner for b in bodies if b.note.owner is not None}, key=lambda o: (o.fingerprint, o.name))
    ids = {owner: tokens.recall(connection, owner) for owner in owners}
    lanes = keep_lanes(connection, {lane_key(dataset, i.lane) for i in identities if isinstance(i, RangeIdentity)})
    columns = []
    own: dict[str, Any]
    for body in bodies:
        identity, owner = body.note.identity, body.note.owner
        if isinstance(identity, RangeIdentity):
            rows = identity.rows
            own = {"lane_id": lanes[lane_key(dataset, identity.lane)], "lo": rows.lo, "hi": rows.hi}
        elif owner is not None:
            own = {"token_id": ids[owner], "key": identity.key}
        else:
            raise ValueError("a key belongs to a token")
        columns.append(_NO_IDENTITY | own)
    return columns


_KNOWN = sa.select(received, receive_batch.c.batch_id.label("batch_name"), receive_batch.c.published_at).join_from(
    received, receive_batch, receive_batch.c.id == received.c.batch, isouter=True
)


def _conflicting(
    connection: sa.Connection, dataset: DatasetId, identities: Sequence[dict[str, Any]]
) -> dict[int, list[Any]]:
    """The ledger's bodies with the same key or an overlapping range, by position in `identities`."""
    # There are hardly any, so few queries search for all of them.
    ranges = {n: SeqRange(i["lo"], i["hi"]) for n, i in enumerate(identities) if i["key"] is None}
    keys = {(dataset, i["token_id"], i["key"]): n for n, i in enumerate(identities) if i["key"] is not None}
    conflicting: dict[int, list[Any]] = defaultdict(list)
    columns = sa.tuple_(received.c.dataset_id, received.c.token_id, received.c.key)
    for part in slices(keys, parameters_each=3):
        for row in connection.execute(_KNOWN.where(columns.in_(part))):
            conflicting[keys[DatasetId(row.dataset_id), row.token_id, row.key]].append(row)
    by_lane: dict[int, list[SeqRange]] = defaultdict(list)
    for n, rows in ranges.items():
        by_lane[identities[n]["lane_id"]].append(rows)
    overlapping = overlapping_bodies(connection, by_lane)
    for n, rows in ranges.items():
        lane = identities[n]["lane_id"]
        if any(body.rows.overlaps(rows) for body in overlapping.get(lane, {}).values()):
            overlap = (received.c.lane_id == lane, received.c.lo <= rows.hi, received.c.hi >= rows.lo)
            conflicting[n] += connection.execute(_KNOWN.where(*overlap)).all()
    return conflicting


def is_replaceable(identity: BodyIdentity, *, is_ingested: bool) -> bool:
    """Whether the leader's record of a body replaces the one of this site: if the body only waits here, or if it has a
    key. The leader may have deleted that key, and a client may have used it again."""
    return not is_ingested or isinstance(identity, KeyIdentity)


def _delete_replaced(
    connection: sa.Connection, dataset: DatasetId, bodies: Sequence[ReceiptBody], conflicting: dict[int, list[Any]]
) -> tuple[set[int], str | None]:
    """Deletes the bodies that are replaced. Returns the positions of the bodies that can be recorded, and what
    contradicts the others."""
    recordable, problem, replaced = set(range(len(bodies))), None, set[int]()
    for n, rows in conflicting.items():
        identity = bodies[n].note.identity
        if all(is_replaceable(identity, is_ingested=_is_ingested(connection, dataset, row)) for row in rows):
            replaced |= {row.id for row in rows}
        else:
            recordable.discard(n)
            problem = problem or f"the ledger has other rows, or another batch, for {batch_receipts.describe(identity)}"
    emptied = {r.batch for rows in conflicting.values() for r in rows if r.id in replaced and r.batch is not None}
    for part in slices(replaced):
        connection.execute(received.delete().where(received.c.id.in_(part)))
    has_bodies = sa.exists().where(received.c.batch == receive_batch.c.id)
    for part in slices(emptied):
        is_empty = (receive_batch.c.id.in_(part), receive_batch.c.published_at.is_(None), ~has_bodies)
        connection.execute(receive_batch.delete().where(*is_empty))
    return recordable, problem


def _is_ingested(connection: sa.Connection, dataset: DatasetId, row: Any) -> bool:
    if row.batch_name is None or row.published_at is not None:
        return row.batch_name is not None
    return blocks.of_batch(connection, dataset, row.batch_name) is not None


def _store_claims(connection: sa.Connection, dataset: DatasetId, claims: Sequence[AnnouncedClaim]) -> None:
    """Stores the claims as the leader has them. Ignores a claim that is older than the stored one: a slow process has
    read it."""
    stored = find_sources(connection, [(dataset, c.lake, c.dataset) for c in claims])
    for claim in claims:
        existing = stored.get((dataset, claim.lake, claim.dataset))
        owner = None if claim.owner is None else tokens.recall(connection, claim.owner)
        values = {
            "instance": claim.instance,
            "table_uuid": claim.table_uuid,
            "generation": claim.generation,
            "term": claim.term,
            "owner_id": owner,
        }
        if existing is not None:
            is_older = claim.generation < existing.generation or claim.term < existing.term
            if all(existing._mapping[name] == value for name, value in values.items()):
                continue
            if is_older and (existing.instance, existing.table_uuid) == (claim.instance, claim.table_uuid):
                continue
            connection.execute(source.delete().where(source.c.id == existing.id))
        at = {"dataset_id": dataset, "lake": claim.lake, "source_dataset": claim.dataset, "created_at": utc_now()}
        connection.execute(source.insert().values(**at, **values))


# --- batches that are given up, and batches with unknown bodies ------------------------------------------------------


def withdraw(connection: sa.Connection, dataset: DatasetId, batch_ids: Iterable[str]) -> int:
    """Deletes the bodies of batches whose rows this site gives up, so that they count as new again. Returns how many.
    Only for a site that follows. A batch that it had not settled when it led stays: its bodies wait in the spool."""
    bodies = 0
    for part in slices(filter(batch_names.is_received, batch_ids)):
        settled = sa.select(receive_batch.c.id).where(
            receive_batch.c.batch_id.in_(part),
            receive_batch.c.dataset_id == dataset,
            receive_batch.c.published_at.is_not(None),
        )
        ids = connection.execute(settled).scalars().all()
        if ids:
            bodies += connection.execute(received.delete().where(received.c.batch.in_(ids))).rowcount
            connection.execute(receive_batch.delete().where(receive_batch.c.id.in_(ids)))
    return bodies


_PAGE_BLOCKS = 500
_IS_KNOWN = sa.exists().where(
    receive_batch.c.batch_id == block.c.batch_id, receive_batch.c.dataset_id == block.c.dataset_id
)


def unknown_batches(
    connection: sa.Connection, dataset: DatasetId, *, above: int = 0, batches_max: int | None = None
) -> list[BlockHead]:
    """Received batches in the table whose bodies the ledger does not know, lowest first."""
    query = sa.select(block).where(
        block.c.dataset_id == dataset,
        block.c.state == sa.literal_column("'published'"),
        block.c.kind == BlockKind.BATCH.value,
        block.c.item == ItemKind.SEGMENT.value,
        block.c.batch_id.startswith(BATCH_PREFIX),
        ~_IS_KNOWN,
    )
    unknown: list[BlockHead] = []
    while batches_max is None or len(unknown) < batches_max:
        page = blocks.read_blocks(connection, query.where(block.c.lo > above).order_by(block.c.lo).limit(_PAGE_BLOCKS))
        unknown += [b.head for b in page if batch_names.is_received(b.head.batch_id)]  # SQL compares only the prefix
        if len(page) < _PAGE_BLOCKS:
            break
        above = page[-1].head.rows.lo
    return unknown[:batches_max]


def hold_unknown(connection: sa.Connection, dataset: DatasetId) -> str | None:
    """If the table has a batch whose bodies the old leader did not announce, puts the dataset's receiver on hold and
    returns the reason. In the transaction that makes this site the leader."""
    unknown = unknown_batches(connection, dataset, batches_max=1)
    if not unknown:
        return None
    reason = (
        f"this site took over, and the leader before it did not say which bodies are in batch {unknown[0].batch_id} "
        f"(sequence numbers {unknown[0].rows})"
    )
    receive_holds.put(connection, dataset, reason)
    return reason


def store_leader_hold(connection: sa.Connection, dataset: DatasetId, reason: str | None) -> None:
    """Stores the hold of the leader's receiver; `reason` is None if it has none. The site's own holds stay."""
    stored = receive_holds.list_holds(connection).get(dataset)
    if reason is not None:
        receive_holds.put(connection, dataset, FROM_LEADER + reason.removeprefix(FROM_LEADER))
    elif stored is not None and stored.startswith(FROM_LEADER):
        receive_holds.clear(connection, dataset)
