"""The ledger's tables. CHECKs and partial unique indexes refuse states that the protocol does not allow.

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
    CheckConstraint,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    text,
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


# SQLite assigns row ids only if the key's type is exactly INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")

sequence = Table(
    "sequence",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_sequence"), primary_key=True),
    Column("lake", Text, nullable=False),
    Column("last", BigInteger, CheckConstraint("last >= 0", name="last_not_negative"), nullable=False),
    Column("epoch", BigInteger, CheckConstraint("epoch >= 1", name="epoch_positive"), nullable=False),
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
    Column("history", Text, CheckConstraint("history IN ('deliver', 'skip')", name="history_known"), nullable=False),
    Column("created_at", UtcMicros, nullable=False),
    Column("dropped_at", UtcMicros),
    Index(
        "one_dataset_of_a_name",
        "name",
        unique=True,
        sqlite_where=text("dropped_at IS NULL"),
        postgresql_where=text("dropped_at IS NULL"),
    ),
)

_NOT_ABANDONED = text("state <> 'abandoned'")
_OPEN = text("state IN ('reserved', 'staged')")
_PUBLISHED = text("state = 'published'")
_NOT_RECOVERED = text("kind <> 'recovered'")

block = Table(
    "block",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("lo", BigInteger, nullable=False),
    Column("hi", BigInteger, nullable=False),
    Column(
        "kind", Text, CheckConstraint("kind IN ('batch', 'adopted', 'recovered')", name="kind_known"), nullable=False
    ),
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
    CheckConstraint("lo >= 1 AND hi >= lo", name="range_not_empty"),
    CheckConstraint("state IN ('reserved', 'staged', 'published', 'abandoned')", name="state_known"),
    CheckConstraint("(state = 'reserved') = (lease_until IS NOT NULL)", name="reserved_has_a_lease"),
    CheckConstraint("state <> 'staged' OR snapshot_id IS NOT NULL", name="staged_has_a_snapshot"),
    CheckConstraint("state IN ('staged', 'published') OR snapshot_id IS NULL", name="snapshot_only_when_staged"),
    CheckConstraint("(state = 'abandoned') = (reason IS NOT NULL)", name="abandoned_has_a_reason"),
    CheckConstraint(
        "(state = 'published' AND kind <> 'recovered') = (row_count IS NOT NULL)", name="published_has_a_count"
    ),
    # A batch that is ingested twice has one block.
    Index(
        "one_block_of_a_batch",
        "dataset_id",
        "batch_id",
        unique=True,
        sqlite_where=_NOT_ABANDONED,
        postgresql_where=_NOT_ABANDONED,
    ),
    # A recovered range has a row in each dataset; every other sequence number belongs to one block of the lake.
    Index("one_block_of_a_number", "lo", unique=True, sqlite_where=_NOT_RECOVERED, postgresql_where=_NOT_RECOVERED),
    Index("open_blocks", "dataset_id", "lo", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("published_blocks", "dataset_id", "hi", sqlite_where=_PUBLISHED, postgresql_where=_PUBLISHED),
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
    CheckConstraint("(settled_snapshot IS NULL) = (settled_sequence IS NULL)", name="settled_has_a_sequence"),
    CheckConstraint("(trouble IS NULL) = (trouble_since IS NULL)", name="trouble_has_a_time"),
)

_NOT_REMOVED = text("removed_at IS NULL")

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
    CheckConstraint("peer IN ('receiver', 'other')", name="peer_known"),
    CheckConstraint("generation >= 1", name="generation_positive"),
    CheckConstraint("start >= 1", name="start_positive"),
    CheckConstraint("planned >= 1", name="planned_positive"),
    CheckConstraint("start IS NULL OR (planned IS NOT NULL AND planned >= start)", name="planned_from_the_start"),
    CheckConstraint("state IN ('active', 'paused', 'stopped')", name="sink_state_known"),
    CheckConstraint("state <> 'stopped' OR reason IS NOT NULL", name="stopped_has_a_reason"),
    CheckConstraint("failures >= 0", name="failures_not_negative"),
    CheckConstraint("(lease_token IS NULL) = (lease_until IS NULL)", name="lease_whole"),
    Index("one_sink_of_a_name", "name", unique=True, sqlite_where=_NOT_REMOVED, postgresql_where=_NOT_REMOVED),
    Index(
        "one_sink_of_a_destination",
        "destination",
        unique=True,
        sqlite_where=_NOT_REMOVED,
        postgresql_where=_NOT_REMOVED,
    ),
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
    CheckConstraint("generation >= 1", name="lane_generation_positive"),
    CheckConstraint("mark >= 1", name="mark_positive"),
    CheckConstraint("builds_on >= 1", name="builds_on_positive"),
    CheckConstraint("exported >= 0 AND withheld >= 0", name="totals_not_negative"),
    CheckConstraint("(last_lo IS NULL) = (last_hi IS NULL)", name="last_whole"),
    CheckConstraint(
        "last_lo IS NULL OR (mark IS NOT NULL AND last_lo >= 1 AND last_lo <= last_hi AND last_hi <= mark)",
        name="last_below_the_mark",
    ),
    Index("one_lane_of_a_partition", "sink_id", "generation", "partition_hash", unique=True),
    # Every tick asks which lanes are behind, however many there are.
    Index("lanes_by_mark", "sink_id", "generation", "mark"),
)

_INTENT_OPEN = text("closed_at IS NULL")

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
    CheckConstraint("until >= 1 AND (after IS NULL OR (after >= 1 AND after < until))", name="intent_not_empty"),
    Index("one_open_intent", "lane_id", unique=True, sqlite_where=_INTENT_OPEN, postgresql_where=_INTENT_OPEN),
    Index("one_intent_of_a_bound", "lane_id", "until", unique=True),
)

_CHUNK_PLANNED = text("state = 'planned'")
_A_PART = text("split_from IS NOT NULL")

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
    CheckConstraint("lo >= 1 AND hi >= lo", name="chunk_not_empty"),
    CheckConstraint("state IN ('planned', 'landed', 'empty')", name="chunk_state_known"),
    CheckConstraint("expected >= 0 AND row_count >= 0 AND withheld >= 0 AND size >= 0", name="counts_not_negative"),
    CheckConstraint("(state = 'planned') = (acked_at IS NULL)", name="acked_has_a_time"),
    CheckConstraint(
        "state <> 'planned' OR (row_count IS NULL AND withheld IS NULL AND digest IS NULL AND size IS NULL)",
        name="planned_knows_no_outcome",
    ),
    CheckConstraint("NOT found OR state = 'landed'", name="found_is_landed"),
    # A sink may hold a range and not be able to say how many rows are in it.
    CheckConstraint(
        "state <> 'landed' OR found OR (row_count IS NOT NULL AND withheld IS NOT NULL)",
        name="landed_has_a_count",
    ),
    CheckConstraint("state <> 'empty' OR (row_count = 0 AND withheld IS NOT NULL)", name="empty_has_no_rows"),
    Index("one_chunk_of_a_number", "lane_id", "lo", unique=True),
    Index("chunks_of_an_intent", "intent_id"),
    Index("planned_chunks", "intent_id", sqlite_where=_CHUNK_PLANNED, postgresql_where=_CHUNK_PLANNED),
    Index("parts_of_a_chunk", "split_from", "lo", unique=True, sqlite_where=_A_PART, postgresql_where=_A_PART),
)
