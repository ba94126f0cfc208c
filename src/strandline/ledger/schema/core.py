"""The columns of the ledger's tables, for queries. The migrations make the tables: keys, CHECKs, indexes and triggers,
which refuse what the protocol does not allow, are in `migrations/versions/` and nowhere else.

A block moves `reserved → staged → published`, or `reserved → abandoned`. An adopted block moves from `reserved`
straight to `published`, because its commit point is the Iceberg commit that numbers the rows. A chunk moves
`planned → landed` or `planned → empty`. While it is planned, its two parts may replace it. Triggers (made by the
migrations) refuse every other transition, a counter or a watermark that moves back, and every change to what was
promised: an intent's bounds and options, a chunk's range.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

metadata = MetaData()


def micros(moment: datetime) -> int:
    whole = moment.astimezone(UTC)
    return int(whole.replace(microsecond=0).timestamp()) * 1_000_000 + whole.microsecond


class UtcMicros(TypeDecorator[datetime]):
    """A time as microseconds since 1970: exact, sortable, and the same in both databases."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment without a time zone")
        return micros(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        seconds, micros = divmod(int(value), 1_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


def partition_hash(partition: str) -> str:
    """The key that finds a lane: a partition may be longer than PostgreSQL can index (about 2,700 bytes)."""
    return hashlib.sha256(partition.encode()).hexdigest()


def hash_column() -> Column[str]:
    """A column that gets the hash of the row's `partition` on every insert."""
    return Column(
        "partition_hash",
        Text,
        nullable=False,
        default=lambda context: partition_hash(context.get_current_parameters()["partition"]),
    )


def actor_columns() -> tuple[Column[str], Column[str]]:
    """Who did it (`core/actor.py`). NULL: recorded by a version that did not store it."""
    return Column("actor", Text), Column("trigger", Text)


# SQLite assigns row ids only if the key's type is exactly INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")

sequence = Table(
    "sequence",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("lake", Text, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("created_at", UtcMicros, nullable=False),
)

dataset = Table(
    "dataset",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("name", Text, nullable=False),
    Column("table_uuid", Text, nullable=False),
    Column("deliver_by", Text, nullable=False),  # a JSON list of column names
    Column("adopted", Boolean, nullable=False),
    Column("history", Text, nullable=False),
    Column("created_at", UtcMicros, nullable=False),
    Column("dropped_at", UtcMicros),
)

block = Table(
    "block",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("lo", BigInteger, nullable=False),
    Column("hi", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("batch_id", Text, nullable=False),
    Column("digest", Text),
    Column("state", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("lease_until", UtcMicros),
    Column("snapshot_id", BigInteger),
    Column("row_count", BigInteger),
    Column("reason", Text),
    Column("reserved_at", UtcMicros, nullable=False),
    Column("changed_at", UtcMicros, nullable=False),
)

# The files whose rows an adopted block numbers. Recovery takes over a crashed pass by numbering them again.
input_file = Table(
    "input_file",
    metadata,
    Column("block_id", BigInteger, ForeignKey("block.id"), primary_key=True),
    Column("path", Text, primary_key=True),
)

audit = Table(
    "audit",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("at", UtcMicros, nullable=False),
    Column("event", Text, nullable=False),
    Column("detail", Text, nullable=False),  # JSON
    *actor_columns(),
)

# Foreign and unnumbered rows, as last counted at one snapshot of main.
table_count = Table(
    "table_count",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("snapshot_id", BigInteger),
    Column("unnumbered", BigInteger, nullable=False),
    Column("foreign_rows", BigInteger, nullable=False),
    Column("counted_at", UtcMicros, nullable=False),
    Column("twice", BigInteger),
    Column("twice_first", BigInteger),
    Column("foreign_from", BigInteger),  # the lowest foreign sequence number above the counter of that moment
)

# The snapshot of main whose sequence numbers were last compared with the counter, stored by the transaction that placed
# a block above them. `beyond`: the lowest sequence number that was too far ahead of the counter to skip.
table_check = Table(
    "table_check",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("snapshot_id", BigInteger),
    Column("beyond", BigInteger),
)

# What the ledger remembers of a table besides its blocks.
table_state = Table(
    "table_state",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("settled_snapshot", BigInteger),  # the snapshot of our tag, when the ledger last learned of it
    Column("settled_sequence", BigInteger),  # Iceberg's sequence number of that snapshot
    Column("doubt", Text),  # rows were published while nothing showed whether the table had been rolled back
    Column("trouble", Text),  # why the last recovery could not settle the dataset
    Column("trouble_since", UtcMicros),
)

sink = Table(
    "sink",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("instance", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("options", Text, nullable=False),  # a JSON object of texts
    Column("destination", Text, nullable=False),
    Column("start", BigInteger),
    Column("planned", BigInteger),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("failures", BigInteger, nullable=False),
    Column("retry_at", UtcMicros),
    Column("lease_token", Text),
    Column("lease_until", UtcMicros),
    Column("created_at", UtcMicros, nullable=False),
    Column("removed_at", UtcMicros),
    Column("peer", Text),  # the kind of server that answered the claim of the destination; NULL where it is irrelevant
    Column("failing_since", UtcMicros),  # the time of the first failure after the last success
    Column("from_now", Boolean),  # whether it was added for new rows only; null: not known
)

lane = Table(
    "lane",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("sink_id", BigInteger, ForeignKey("sink.id"), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("partition", Text, nullable=False),
    hash_column(),
    Column("mark", BigInteger),
    Column("continuation", Text, nullable=False),
    Column("exported", BigInteger, nullable=False),
    Column("withheld", BigInteger, nullable=False),
    Column("last_lo", BigInteger),
    Column("last_hi", BigInteger),
    # The generation before delivered the rows at or below it; this generation sent only some of them again.
    Column("builds_on", BigInteger),
    Column("version", BigInteger, nullable=False),
    Column("updated_at", UtcMicros, nullable=False),
)

intent = Table(
    "intent",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("lane_id", BigInteger, ForeignKey("lane.id"), nullable=False),
    Column("after", BigInteger),
    Column("until", BigInteger, nullable=False),
    Column("options", Text, nullable=False),  # a JSON object of texts
    Column("opened_at", UtcMicros, nullable=False),
    Column("closed_at", UtcMicros),
)

chunk = Table(
    "chunk",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("intent_id", BigInteger, ForeignKey("intent.id"), nullable=False),
    Column("lane_id", BigInteger, ForeignKey("lane.id"), nullable=False),
    Column("lo", BigInteger, nullable=False),
    Column("hi", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("expected", BigInteger, nullable=False),
    Column("row_count", BigInteger),
    Column("withheld", BigInteger),
    Column("digest", Text),
    Column("size", BigInteger),
    Column("found", Boolean, nullable=False),
    Column("acked_at", UtcMicros),
    Column("split_from", BigInteger),  # the id of the chunk that this one is a part of; that chunk is gone
    # It may have been sent. Stored before the send, for sinks that cannot say what they hold.
    Column("offered", Boolean, nullable=False),
)
