"""Consumers: readers of a dataset that have a name. The ledger stores the watermark of each, up to which it has every
row, so that retention keeps the rest and `status` shows its lag.

A consumer belongs to one query at a time: the last one that began to read under its name has the highest fence. An
older query, which may still run somewhere, can no longer move the watermark.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NewType

import sqlalchemy as sa

from strandline.core.errors import NoSuchConsumer, RefusedError, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import OnLag
from strandline.core.text.bounded_text import check_text
from strandline.core.types import Dataset, DatasetId, Seq, seq_or_none
from strandline.ledger import audit
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import from_row, insert_into, utc_now
from strandline.ledger.ingest import blocks
from strandline.ledger.maintain import floors
from strandline.ledger.schema.consumers import consumer
from strandline.ledger.schema.core import dataset

ConsumerId = NewType("ConsumerId", int)


@dataclass(frozen=True, slots=True)
class ConsumerTerms:
    """Whether retention waits for a consumer, and for how long."""

    on_lag: OnLag = OnLag.HOLD
    drop_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    id: ConsumerId
    dataset: DatasetId
    name: str
    watermark: Seq | None  # it has every row up to here; None: it has none
    fence: int
    on_lag: OnLag
    drop_after: timedelta | None  # for how long retention waits for it, if it drops rows at all
    added_at: datetime
    reported_at: datetime | None  # its last progress report; None: never
    held_since: datetime | None  # since when retention keeps due rows for it; None: it does not
    dropped_upto: Seq | None  # a rule has deleted rows up to here that it did not have

    @property
    def title(self) -> str:
        """For lists that also have sinks."""
        return f"consumer {self.name}"

    @property
    def terms(self) -> ConsumerTerms:
        return ConsumerTerms(self.on_lag, self.drop_after)


def _consumer(row: Any) -> Consumer:
    return from_row(
        Consumer,
        row,
        dataset=DatasetId(row.dataset_id),
        watermark=seq_or_none(row.watermark or None),
        on_lag=OnLag(row.on_lag),
        drop_after=None if row.drop_after_seconds is None else timedelta(seconds=row.drop_after_seconds),
    )


_LIVE = sa.select(consumer).where(consumer.c.removed_at.is_(None))


def find(connection: sa.Connection, of: DatasetId, name: str) -> Consumer | None:
    row = connection.execute(_LIVE.where(consumer.c.dataset_id == of, consumer.c.name == name)).one_or_none()
    return None if row is None else _consumer(row)


def get(connection: sa.Connection, of: Dataset, name: str) -> Consumer:
    if (stored := find(connection, of.id, name)) is None:
        names = ", ".join(c.name for c in of_dataset(connection, of.id)) or "none yet"
        raise NoSuchConsumer(f"{of.name} has no consumer {name}", hint=f"Its consumers: {names}.")
    return stored


def of_dataset(connection: sa.Connection, of: DatasetId) -> list[Consumer]:
    """The consumers of the dataset by name, without removed ones."""
    return [
        _consumer(r) for r in connection.execute(_LIVE.where(consumer.c.dataset_id == of).order_by(consumer.c.name))
    ]


def watermarks_by_title(connection: sa.Connection, of: DatasetId) -> dict[str, Seq | None]:
    """The watermarks of the dataset's consumers, by title."""
    return {c.title: c.watermark for c in of_dataset(connection, of)}


# --- what a query does -----------------------------------------------------------------------------------------------


def begin(
    connection: sa.Connection, of: Dataset, name: str, at: Seq | None, terms: ConsumerTerms | None = None
) -> Consumer:
    """Begins a query that reads under the name. A new consumer begins after `at`. From now on retention keeps the rows
    that it lacks, and an older query under the name cannot continue. Without `terms`, an existing consumer keeps its
    own, and retention waits for a new one."""
    if not name.strip():
        raise UsageError("a consumer needs a name")
    check_text("the consumer's name", name)
    # A run of retention that did not see a new consumer has finished, or will fail.
    floors.lock(connection, of.id)
    before = find(connection, of.id, name)
    terms = terms or (ConsumerTerms() if before is None else before.terms)
    values = {
        "on_lag": terms.on_lag.value,
        "drop_after_seconds": None if terms.drop_after is None else int(terms.drop_after.total_seconds()),
    }
    if before is not None and before.terms != terms:
        audit.record(connection, Event.CONSUMER_CHANGED, consumer=name, dataset=of.name, **values)
    own = (consumer.c.dataset_id == of.id, consumer.c.name == name, consumer.c.removed_at.is_(None))
    fenced = consumer.update().where(*own).values(fence=consumer.c.fence + 1, **values).returning(consumer)
    if (existing := connection.execute(fenced).one_or_none()) is not None:
        return _consumer(existing)
    first = {"dataset_id": of.id, "name": name, "watermark": at or 0, "fence": 1, "added_at": utc_now()}
    added = connection.execute(insert_into(connection, consumer).values(**first, **values).returning(consumer)).one()
    audit.record(connection, Event.CONSUMER_ADDED, consumer=name, dataset=of.name, after=at, on_lag=terms.on_lag)
    return _consumer(added)


def advance(connection: sa.Connection, of: Consumer, to: Seq) -> Consumer:
    """Moves the watermark, forward only. Raises NoSuchConsumer if the consumer was removed, and RefusedError if another
    query has begun to read under its name."""
    own = (consumer.c.id == of.id, consumer.c.removed_at.is_(None), consumer.c.fence == of.fence)
    moved = sa.case((consumer.c.watermark < to, to), else_=consumer.c.watermark)
    if connection.execute(consumer.update().where(*own).values(watermark=moved, reported_at=utc_now())).rowcount == 1:
        return replace(of, watermark=Seq(max(of.watermark or 0, to)))
    if connection.execute(_LIVE.where(consumer.c.id == of.id)).one_or_none() is None:
        raise NoSuchConsumer(
            f"consumer {of.name} was removed while this query read under its name",
            hint="Start the query again to add the consumer again, or give it another name.",
        )
    raise RefusedError(
        f"another query has begun to read as consumer {of.name}, so this one stops",
        hint="Each query, and each source within a query, needs a name of its own.",
    )


def remove(connection: sa.Connection, of: Dataset, name: str) -> Consumer:
    """Removes the consumer: from now on retention keeps nothing for it."""
    removed = get(connection, of, name)
    connection.execute(consumer.update().where(consumer.c.id == removed.id).values(removed_at=utc_now()))
    audit.record(connection, Event.CONSUMER_REMOVED, consumer=name, dataset=of.name, watermark=removed.watermark)
    return removed


# --- what retention does ---------------------------------------------------------------------------------------------


def keep_holds(
    connection: sa.Connection, of: DatasetId, holding: Collection[ConsumerId], now: datetime
) -> tuple[list[Consumer], list[Consumer]]:
    """Stores for which consumers retention keeps due rows. Returns those that are new, and those that it no longer
    waits for. `held_since` stays the time of the first run that found it."""
    live = of_dataset(connection, of)
    new = [c for c in live if c.id in holding and c.held_since is None]
    over = [c for c in live if c.id not in holding and c.held_since is not None]
    for changed, since in ((new, now), (over, None)):
        if changed:
            ids = [c.id for c in changed]
            connection.execute(consumer.update().where(consumer.c.id.in_(ids)).values(held_since=since))
    return new, over


def drop_for(connection: sa.Connection, id: ConsumerId, upto: Seq) -> None:
    """Records that rows up to here were deleted which the consumer may not have. Only its query moves its watermark."""
    is_higher = sa.func.coalesce(consumer.c.dropped_upto, 0) < upto
    connection.execute(consumer.update().where(consumer.c.id == id, is_higher).values(dropped_upto=upto))


def dropped_upto(connection: sa.Connection, id: ConsumerId) -> Seq | None:
    """The sequence number up to which a rule has deleted rows that the consumer did not have."""
    return seq_or_none(connection.execute(sa.select(consumer.c.dropped_upto).where(consumer.c.id == id)).scalar())


# --- what status shows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    consumer: Consumer
    dataset: str
    rows: int  # settled rows that it lacks
    since: datetime | None  # when the first of them was published; None if it lacks none


def read_lags(connection: sa.Connection) -> list[ConsumerLag]:
    """The lag of every consumer, in one query."""
    progress = (
        sa.select(
            consumer,
            dataset.c.name.label("of"),
            blocks.sealed_of(consumer.c.dataset_id).scalar_subquery().label("sealed"),
        )
        .join_from(consumer, dataset, dataset.c.id == consumer.c.dataset_id)
        .where(consumer.c.removed_at.is_(None), dataset.c.dropped_at.is_(None))
        .cte("progress")
        .prefix_with("MATERIALIZED")
    )
    at = progress.c
    query = sa.select(
        progress,
        sinks.rows_above(at.dataset_id, at.watermark, at.sealed).label("lag"),
        sinks.first_published_above(at.dataset_id, at.watermark, at.sealed).label("since"),
    ).order_by(at.name, at.of)
    return [ConsumerLag(_consumer(r), r.of, int(r.lag), r.since) for r in connection.execute(query)]
