"""Batches of received bodies that cannot be ingested as they are: divided, set aside, replayed, discarded, cleared.

A batch ends only while it has no block, under the counter's lock, and never gets a block afterwards. So a receiver that
still holds it cannot ingest it after its bodies went into other batches. Triggers enforce both rules. The name of a
part contains the name of the whole, so that a restored ledger can tell what was divided (`divide_again`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from strandline.core import batch_names, failpoints
from strandline.core.errors import RefusedError, ResyncNeeded, UsageError, WitnessUnreadable
from strandline.core.records.audit_events import Event
from strandline.core.types import BlockKind, DatasetId, ItemKind, Published, Reserved
from strandline.ledger import audit
from strandline.ledger.engine import Ledger, from_row, utc_now
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.receive import batches
from strandline.ledger.receive.batches import BODIES_MAX, Batch, BatchBody
from strandline.ledger.receive.received import ReceivedId
from strandline.ledger.schema.core import block
from strandline.ledger.schema.core import dataset as dataset_table
from strandline.ledger.schema.receive import UNFINISHED, receive_batch, received, source_lane
from strandline.ledger.witness import Witness

_IS_ASIDE = receive_batch.c.ending == sa.literal_column("'set_aside'")
_NOT_SETTLED = (receive_batch.c.published_at.is_(None), sa.or_(receive_batch.c.ended_at.is_(None), _IS_ASIDE))

# --- how the intake decides ---


@dataclass(frozen=True, slots=True)
class FailedBatchFacts:
    """What is known of a batch that failed, besides its number of failures."""

    others_got_in: bool  # another batch of the dataset was reserved and published since the first failure of this one
    smaller_under_trial: bool  # a smaller batch has not failed often enough yet, and its outcome will tell more


def failed_batch_facts(connection: sa.Connection, batch: Batch, *, tries: int) -> FailedBatchFacts:
    # Compares sequence numbers, not times: blocks that were reserved later have higher ones, whatever the clocks show.
    failed_from = connection.scalar(sa.select(receive_batch.c.failed_from).where(receive_batch.c.id == batch.id))
    others = failed_from is not None and _published_above(connection, batch.dataset, int(failed_from))
    bodies = sa.func.count(received.c.id)
    smaller = (
        sa.select(receive_batch.c.id)
        .join_from(receive_batch, received, received.c.batch == receive_batch.c.id)
        .where(*UNFINISHED, receive_batch.c.dataset_id == batch.dataset, receive_batch.c.failures < tries)
        .group_by(receive_batch.c.id)
        .having(sa.or_(bodies < len(batch.bodies), sa.and_(bodies == len(batch.bodies), receive_batch.c.id < batch.id)))
        .limit(1)
    )
    return FailedBatchFacts(others, connection.execute(smaller).first() is not None)


def _published_above(connection: sa.Connection, dataset: DatasetId, number: int) -> bool:
    later = sa.select(block.c.id).where(
        block.c.dataset_id == dataset,
        block.c.state == sa.literal_column("'published'"),
        block.c.kind == BlockKind.BATCH.value,
        block.c.item == ItemKind.SEGMENT.value,
        block.c.hi > number,  # for the index
        block.c.lo > number,
    )
    return connection.execute(later.limit(1)).first() is not None


# --- divided, and set aside ---


def divide(ledger: Ledger, witness: Witness, batch: Batch) -> list[Batch]:
    """Returns the parts, which have the bodies from now on. Returns none and changes nothing if the batch has a block
    or is finished, another process took it over, or the ledger was restored and the table may have the batch."""
    with ledger.write() as connection:
        if not _end(connection, witness, batch, "divided"):
            return []
        parts = _parts(connection, batch.dataset, batch.batch_id, batch.bodies)
    failpoints.hit("receive.after_divide")
    return parts


def set_body_aside(ledger: Ledger, witness: Witness, batch: Batch, reason: str) -> bool:
    """Sets the batch's only body aside for a person, with the reason. False where `divide` returns no parts."""
    if len(batch.bodies) != 1:
        raise ValueError("only a body that was tried alone is set aside")
    done = ledger.change(_end, witness, batch, "set_aside", reason=reason, failures=receive_batch.c.failures + 1)
    failpoints.hit("receive.after_set_aside")
    return done


def _end(connection: sa.Connection, witness: Witness, batch: Batch, ending: str, /, **values: Any) -> bool:
    try:
        sequence.check(connection, witness)  # under this lock nobody can reserve a block for the batch
        blocks.check_resynced(connection, batch.dataset)
    except (ResyncNeeded, WitnessUnreadable):
        return False
    if blocks.of_batch(connection, batch.dataset, batch.batch_id) is not None:
        return False
    return batches.change(connection, batch, **_ended(ending), **values)


def _ended(ending: str) -> dict[str, Any]:
    return {"ending": ending, "ended_at": utc_now(), "retry_at": None, **batches.leases.no_lease}


def halves(bodies: Sequence[BatchBody]) -> list[Sequence[BatchBody]]:
    """The bodies of both parts. Deterministic, so that a restored ledger divides a batch in the same way. A single body
    is one part."""
    half = (len(bodies) + 1) // 2
    return [part for part in (bodies[:half], bodies[half:]) if part]


def _parts(connection: sa.Connection, dataset: DatasetId, name: str, bodies: Sequence[BatchBody]) -> list[Batch]:
    return [
        batches.store(connection, dataset, batch_names.part_name(name, n), part)
        for n, part in enumerate(halves(bodies))
    ]


def set_all_aside(connection: sa.Connection, dataset: DatasetId, reason: str) -> int:
    """Sets aside all bodies that wait for the dataset, each in a batch of its own. Returns how many. A batch that has a
    block stays as it is. The caller has locked the counter."""
    unfinished = sa.select(receive_batch.c.id).where(receive_batch.c.dataset_id == dataset, *UNFINISHED)
    waiting = batches.read(connection, connection.execute(unfinished).scalars().all())
    while rows := batches.bodies_without_batch(connection, dataset, BODIES_MAX):
        bodies = [BatchBody(ReceivedId(row.id), row.spool, row.rows, 0) for row in rows]
        waiting.append(batches.store(connection, dataset, batch_names.new_name(), bodies))
    set_aside = 0
    while waiting:
        batch = waiting.pop()
        if blocks.of_batch(connection, dataset, batch.batch_id) is not None:
            continue
        is_alone = len(batch.bodies) == 1
        values = _ended("set_aside") | {"reason": reason} if is_alone else _ended("divided")
        connection.execute(receive_batch.update().where(receive_batch.c.id == batch.id).values(**values))
        set_aside += is_alone
        if not is_alone:
            waiting += _parts(connection, dataset, batch.batch_id, batch.bodies)
    return set_aside


def divide_again(connection: sa.Connection, dataset: DatasetId, batch_id: str) -> int:
    """Divides the batches that this one is a part of, if the ledger has them as unfinished: the table has this batch,
    so they were divided after this ledger was copied. Returns how many. Only in a resync, which fences their writers
    off."""
    divided = 0
    for name in batch_names.enclosing_batches(batch_id):
        row = connection.execute(
            sa.select(receive_batch.c.id, receive_batch.c.ending).where(
                receive_batch.c.dataset_id == dataset, receive_batch.c.batch_id == name, *_NOT_SETTLED
            )
        ).one_or_none()
        if row is None:
            continue
        match blocks.of_batch(connection, dataset, name):
            case Reserved() as reserved:
                blocks.abandon_in(connection, reserved, f"its bodies are in main, in {batch_id}")
            case None:
                pass
            case _:
                continue  # it is past its commit point, so it was never divided
        [batch] = batches.read(connection, [row.id])
        ending = "divided" if row.ending is None else "replayed"
        connection.execute(receive_batch.update().where(receive_batch.c.id == row.id).values(**_ended(ending)))
        _parts(connection, dataset, name, batch.bodies)
        divided += 1
    return divided


# --- what a person does with bodies that are set aside ---


@dataclass(frozen=True, slots=True)
class SetAsideBody:
    id: ReceivedId
    dataset: str
    is_dropped: bool
    rows: int
    bytes: int  # of its file
    spool: str
    received_at: datetime
    since: datetime
    reason: str
    key: str | None  # from the client; None if a sender's range identifies the body
    sender: str | None  # lake, dataset and range of the sender


_ASIDE = (
    sa.select(
        received,
        receive_batch.c.id.label("batch_row"),
        *receive_batch.c["batch_id", "ended_at", "reason"],
        dataset_table.c.name,
        dataset_table.c.dropped_at,
        source_lane.c.lake,
        source_lane.c.source_dataset,
    )
    .join_from(receive_batch, received, received.c.batch == receive_batch.c.id)
    .join(dataset_table, dataset_table.c.id == receive_batch.c.dataset_id)
    .join(source_lane, source_lane.c.id == received.c.lane_id, isouter=True)
    .where(_IS_ASIDE)
    .order_by(dataset_table.c.name, received.c.id)
)


def list_set_aside(connection: sa.Connection, dataset: str | None = None) -> list[SetAsideBody]:
    return [_body_set_aside(row) for row in _chosen(connection, None, dataset)]


def _body_set_aside(row: Any) -> SetAsideBody:
    return from_row(
        SetAsideBody,
        row,
        dataset=row.name,
        is_dropped=row.dropped_at is not None,
        bytes=row.spool_bytes,
        since=row.ended_at,
        sender=None if row.lo is None else f"{row.lake} {row.source_dataset} {row.lo}-{row.hi}",
    )


def count_set_aside(connection: sa.Connection, dataset: DatasetId) -> int:
    query = sa.select(sa.func.count()).where(_IS_ASIDE, receive_batch.c.dataset_id == dataset)
    return int(connection.execute(query).scalar_one())


def replay(ledger: Ledger, ids: Collection[int] | None, dataset: str | None = None) -> list[SetAsideBody]:
    """Queues the bodies again, each as a batch of its own; `ids` None: all of them."""
    with ledger.write() as connection:
        chosen = _chosen(connection, ids, dataset)
        if dropped := [row for row in chosen if row.dropped_at is not None]:
            raise RefusedError(
                f"body {dropped[0].id} was received for {dropped[0].name}, which was dropped",
                hint=f"`strandline spool clear {dropped[0].name}` gives such bodies up.",
            )
        for row in chosen:
            _end_set_aside(connection, row, "replayed")
            body = BatchBody(ReceivedId(row.id), row.spool, row.rows, 0)
            _parts(connection, DatasetId(row.dataset_id), row.batch_id, [body])
        _record(connection, Event.BODIES_REPLAYED, chosen)
    failpoints.hit("spool.after_replay")
    return [_body_set_aside(row) for row in chosen]


def discard(ledger: Ledger, ids: Collection[int] | None, dataset: str | None = None) -> list[SetAsideBody]:
    """Discards the bodies, whose files may be removed then; `ids` None: all of them."""
    with ledger.write() as connection:
        chosen = _chosen(connection, ids, dataset)
        for row in chosen:
            _end_set_aside(connection, row, "discarded")
        _record(connection, Event.BODIES_DISCARDED, chosen)
    failpoints.hit("spool.after_discard")
    return [_body_set_aside(row) for row in chosen]


def _chosen(connection: sa.Connection, ids: Collection[int] | None, dataset: str | None) -> list[Any]:
    query = _ASIDE if dataset is None else _ASIDE.where(dataset_table.c.name == dataset)
    rows = [row for row in connection.execute(query) if ids is None or row.id in ids]
    if missing := sorted(set(ids or ()) - {row.id for row in rows}):
        raise UsageError(
            f"body {missing[0]} is not set aside", hint="`strandline spool list` shows the bodies that are."
        )
    return rows


def _end_set_aside(connection: sa.Connection, row: Any, ending: str) -> None:
    changed = connection.execute(
        receive_batch.update().where(receive_batch.c.id == row.batch_row, _IS_ASIDE).values(**_ended(ending))
    )
    if changed.rowcount != 1:
        raise RefusedError(
            f"body {row.id} is not set aside any more", hint="`strandline spool list` shows the bodies that are."
        )


def _record(connection: sa.Connection, event: Event, chosen: Sequence[Any]) -> None:
    for name in sorted({row.name for row in chosen}):
        own = [row for row in chosen if row.name == name]
        bodies = [{"body": row.id, "rows": row.rows, "digest": row.digest, "reason": row.reason[:200]} for row in own]
        audit.record(connection, event, dataset=name, rows=sum(r.rows for r in own), bodies=bodies[:BODIES_MAX])


# --- bodies of a dropped dataset ---


@dataclass(frozen=True, slots=True)
class Cleared:
    bodies: int
    rows: int
    bytes: int


def clear_dropped(ledger: Ledger, name: str) -> Cleared:
    """Discards every body that waits for a dropped dataset of this name. It works in steps: after a crash, the next
    call does the rest."""
    total = Cleared(0, 0, 0)
    ids = ledger.query(_dropped, name)
    for id in ids:
        while (step := _clear_some(ledger, id, name)) is not None:
            total = Cleared(total.bodies + step.bodies, total.rows + step.rows, total.bytes + step.bytes)
            failpoints.hit("spool.after_clear")
    return total


def _dropped(connection: sa.Connection, name: str) -> list[DatasetId]:
    dropped = connection.execute(
        sa.select(dataset_table.c.id).where(dataset_table.c.name == name, dataset_table.c.dropped_at.is_not(None))
    ).scalars()
    ids = [DatasetId(id) for id in dropped]
    if not ids and datasets.find(connection, name) is not None:
        raise RefusedError(
            f"{name} was not dropped: the bodies that were received for it are ingested",
            hint="Only bodies that were set aside can be given up: `strandline spool discard`.",
        )
    return ids


def _clear_some(ledger: Ledger, id: DatasetId, name: str) -> Cleared | None:
    """Clears one batch, or as many bodies as fit into one; None if nothing is left."""
    with ledger.write() as connection:
        sequence.lock(connection)
        batch = _open_batch(connection, id)
        if batch is None:
            return None
        size = sa.select(sa.func.sum(received.c.spool_bytes)).where(received.c.batch == batch.id)
        cleared = Cleared(len(batch.bodies), batch.rows, int(connection.execute(size).scalar_one()))
        stored_block = blocks.of_batch(connection, id, batch.batch_id)
        if isinstance(stored_block, Published) and len(stored_block.head.rows) == batch.rows:
            # The rows were ingested before the dataset was dropped.
            values = batches.published_as(stored_block.head.rows)
            cleared = Cleared(0, 0, 0)
        else:
            values = _ended("discarded")
            audit.record(
                connection,
                Event.SPOOL_CLEARED,
                dataset=name,
                bodies=cleared.bodies,
                rows=cleared.rows,
                bytes=cleared.bytes,
            )
        connection.execute(receive_batch.update().where(receive_batch.c.id == batch.id).values(**values))
        return cleared


def _open_batch(connection: sa.Connection, id: DatasetId) -> Batch | None:
    """A batch that is unfinished or set aside, or else a new one of bodies that are in none."""
    row_id = connection.execute(
        sa.select(receive_batch.c.id).where(receive_batch.c.dataset_id == id, *_NOT_SETTLED).limit(1)
    ).scalar()
    if row_id is not None:
        [batch] = batches.read(connection, [row_id])
        return batch
    waiting = batches.bodies_without_batch(connection, id, BODIES_MAX)
    bodies = [BatchBody(ReceivedId(row.id), row.spool, row.rows, 0) for row in waiting]
    return batches.store(connection, id, batch_names.new_name(), bodies) if bodies else None
