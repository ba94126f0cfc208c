"""The ledger's tables. CHECKs and partial unique indexes refuse what the protocol does not allow.

A block moves `reserved → staged → published`, or `reserved → abandoned`; an adopted one moves from `reserved`
straight to `published`, because its commit point is the Iceberg commit that numbers the rows. Triggers, made by the
migrations, refuse every other move and a counter that goes back.
"""

from __future__ import annotations

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


class UtcMicros(TypeDecorator[datetime]):
    """A moment as microseconds since 1970: exact, sortable and the same in both databases."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment without a time zone")
        whole = value.astimezone(UTC)
        return int(whole.replace(microsecond=0).timestamp()) * 1_000_000 + whole.microsecond

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        seconds, micros = divmod(int(value), 1_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


# SQLite numbers rows by itself only where the key is exactly INTEGER.
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
    # The same batch offered twice is one block.
    Index(
        "one_block_of_a_batch",
        "dataset_id",
        "batch_id",
        unique=True,
        sqlite_where=_NOT_ABANDONED,
        postgresql_where=_NOT_ABANDONED,
    ),
    # Recovered ranges stand once per dataset; every other number belongs to one block of the lake.
    Index("one_block_of_a_number", "lo", unique=True, sqlite_where=_NOT_RECOVERED, postgresql_where=_NOT_RECOVERED),
    Index("open_blocks", "dataset_id", "lo", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("published_blocks", "dataset_id", "hi", sqlite_where=_PUBLISHED, postgresql_where=_PUBLISHED),
)

input_file = Table(
    "input_file",
    metadata,
    Column("block_id", BigInteger, ForeignKey("block.id"), primary_key=True),
    Column("path", Text, primary_key=True),
)
"""The files whose rows an adopted block numbers: a crashed pass is taken over by numbering them again."""

audit = Table(
    "audit",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("at", UtcMicros, nullable=False),
    Column("event", Text, nullable=False),
    Column("detail", Text, nullable=False),  # JSON
)

table_count = Table(
    "table_count",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("snapshot_id", BigInteger),
    Column("unnumbered", BigInteger, nullable=False),
    Column("foreign_rows", BigInteger, nullable=False),
    Column("counted_at", UtcMicros, nullable=False),
)
"""Rows that are not ours, as last counted at one snapshot of main."""
