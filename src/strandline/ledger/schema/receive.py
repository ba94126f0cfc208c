"""The ledger's tables of receiving and of rows that sinks refused, in the metadata of `core.py`.

A received body is identified by a range of a sender's lane, or by an idempotency key of a token. Its identity, rows
and digest never change. It waits, is placed in a batch, and gets its sequence numbers when the batch is published.
Then its spool file is removed. A body without rows has no file and does not wait.

A batch that is not published may end: as `divided` (its bodies are in its parts), `set_aside` (its only body waits for
a person), `replayed` (that body is in a new batch) or `discarded`. It never gets a block again.

A quarantined row is `held`, then `replaying` and `replayed`, or `discarded`. Triggers (made by the migrations) refuse
every other transition.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Table, Text, literal_column, text

from strandline.ledger.schema.core import RowId, UtcMicros, hash_column, metadata

_NOT_REVOKED = text("revoked_at IS NULL")

api_token = Table(
    "api_token",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("name", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("datasets", Text),  # a JSON list of names; NULL: every dataset
    Column("owner_id", BigInteger),  # the first token of its line (`receive/tokens.py`); NULL: this token
    Column("created_at", UtcMicros, nullable=False),
    Column("revoked_at", UtcMicros),
    Index("one_token_of_a_hash", "hash", unique=True),
    Index("one_token_of_a_name", "name", unique=True, sqlite_where=_NOT_REVOKED, postgresql_where=_NOT_REVOKED),
)

# Which sink of which lake feeds a dataset of ours, and which token owns it: the record that the sender asks for.
source = Table(
    "source",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("lake", Text, nullable=False),
    Column("source_dataset", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("table_uuid", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("owner_id", BigInteger),  # NULL: claimed before owners were stored
    Column("created_at", UtcMicros, nullable=False),
    CheckConstraint("generation >= 1", name="source_generation_positive"),
    Index("one_source_of_a_dataset", "dataset_id", "lake", "source_dataset", unique=True),
)

# A sender's lane. A transaction that adds ranges locks this row, so that no two add ranges that overlap.
source_lane = Table(
    "source_lane",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("lake", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("source_dataset", Text, nullable=False),
    Column("partition", Text, nullable=False),
    hash_column(),
    Column("created_at", UtcMicros, nullable=False),
    CheckConstraint("generation >= 1", name="source_lane_generation_positive"),
    Index(
        "one_lane_of_a_sender",
        "dataset_id",
        "lake",
        "source_dataset",
        "instance",
        "generation",
        "partition_hash",
        unique=True,
    ),
)

_UNFINISHED = text("published_at IS NULL AND ended_at IS NULL")
_SET_ASIDE = text("ending = 'set_aside'")

receive_batch = Table(
    "receive_batch",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("batch_id", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("created_at", UtcMicros, nullable=False),
    Column("lease_token", Text),
    Column("lease_until", UtcMicros),
    Column("lo", BigInteger),
    Column("hi", BigInteger),
    Column("published_at", UtcMicros),
    Column("failures", BigInteger, nullable=False),
    Column("reason", Text),
    Column("retry_at", UtcMicros),
    Column("failed_from", BigInteger),  # the lake's counter at the first failure
    Column("ended_at", UtcMicros),
    Column("ending", Text),
    CheckConstraint("rows >= 1", name="batch_not_empty"),
    CheckConstraint("(lease_token IS NULL) = (lease_until IS NULL)", name="batch_lease_whole"),
    CheckConstraint(
        "(published_at IS NULL) = (lo IS NULL) AND (lo IS NULL) = (hi IS NULL)", name="published_has_numbers"
    ),
    # The sequence numbers of a body's rows are computed from `lo`, so a batch has exactly one per row.
    CheckConstraint("lo IS NULL OR (lo >= 1 AND hi = lo + rows - 1)", name="a_number_for_each_row"),
    CheckConstraint(
        "published_at IS NULL OR (lease_token IS NULL AND reason IS NULL AND retry_at IS NULL)",
        name="published_waits_for_nothing",
    ),
    CheckConstraint("failures >= 0", name="batch_failures_not_negative"),
    Index("one_batch_of_an_id", "batch_id", unique=True),
    Index("unfinished_batches", "id", sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED),
    Index("batches_set_aside", "id", sqlite_where=_SET_ASIDE, postgresql_where=_SET_ASIDE),
)

# `rows > 0`, not `spool IS NOT NULL`: for that, SQLite would use the index of all spool files there ever were.
_WAITS = text("batch IS NULL AND rows > 0")
_SPOOLED = text("spool_removed_at IS NULL AND rows > 0")
_PLACED = text("batch IS NOT NULL")
_BY_KEY = text("key IS NOT NULL")

received = Table(
    "received",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("lane_id", BigInteger, ForeignKey("source_lane.id")),
    Column("lo", BigInteger),
    Column("hi", BigInteger),
    Column("token_id", BigInteger, ForeignKey("api_token.id")),
    Column("key", Text),
    Column("rows", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("spool", Text),
    Column("spool_bytes", BigInteger, nullable=False),
    Column("batch", BigInteger, ForeignKey("receive_batch.id")),
    Column("place", BigInteger),
    Column("received_at", UtcMicros, nullable=False),
    Column("spool_removed_at", UtcMicros),
    CheckConstraint(
        "(lane_id IS NULL) = (lo IS NULL) AND (lane_id IS NULL) = (hi IS NULL) "
        "AND (token_id IS NULL) = (key IS NULL) AND (lane_id IS NULL) = (key IS NOT NULL)",
        name="a_range_or_a_key",
    ),
    CheckConstraint("lo IS NULL OR (lo >= 1 AND hi >= lo)", name="received_not_empty"),
    CheckConstraint("rows >= 0 AND size >= 0 AND spool_bytes >= 0", name="received_not_negative"),
    CheckConstraint("(rows = 0) = (spool IS NULL)", name="rows_are_spooled"),
    CheckConstraint("(batch IS NULL) = (place IS NULL)", name="batched_has_a_place"),
    CheckConstraint("batch IS NULL OR (spool IS NOT NULL AND place >= 0)", name="batched_has_rows"),
    CheckConstraint("spool_removed_at IS NULL OR batch IS NOT NULL", name="removed_after_its_batch"),
    Index("one_body_of_a_number", "lane_id", "lo", unique=True),
    Index("one_body_of_a_key", "dataset_id", "token_id", "key", unique=True),
    Index("one_body_of_a_file", "spool", unique=True),
    Index("one_body_of_a_place", "batch", "place", unique=True, sqlite_where=_PLACED, postgresql_where=_PLACED),
    Index("waiting_bodies", "dataset_id", "id", sqlite_where=_WAITS, postgresql_where=_WAITS),
    # The bytes in the spool are summed often, from this index alone.
    Index("spooled_bodies", "batch", "spool_bytes", sqlite_where=_SPOOLED, postgresql_where=_SPOOLED),
    Index("keys_by_age", "received_at", sqlite_where=_BY_KEY, postgresql_where=_BY_KEY),
)

# The dataset's receiver accepts and ingests nothing until a person has released it.
receive_hold = Table(
    "receive_hold",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("since", UtcMicros, nullable=False),
    Column("reason", Text, nullable=False),
)

_NUMBERED = text("replay_number IS NOT NULL")

# A literal: with a parameter, the databases do not use their partial indexes.
HAS_ROWS = received.c.rows > literal_column("0")

quarantined = Table(
    "quarantined",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("sink_id", BigInteger, ForeignKey("sink.id"), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("lane_id", BigInteger, ForeignKey("lane.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("options", Text, nullable=False),  # a JSON object of texts
    Column("form", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("replay_number", BigInteger),
    Column("at", UtcMicros, nullable=False),
    Column("changed_at", UtcMicros, nullable=False),
    CheckConstraint("seq >= 1 AND size >= 0", name="quarantined_not_negative"),
    CheckConstraint("state IN ('held', 'replaying', 'replayed', 'discarded')", name="quarantined_state_known"),
    CheckConstraint("replay_number >= 1", name="replay_number_positive"),
    CheckConstraint("state IN ('held', 'discarded') OR replay_number IS NOT NULL", name="replayed_has_a_number"),
    Index("one_quarantined_of_a_number", "lane_id", "seq", unique=True),
    Index(
        "one_row_of_a_replay",
        "sink_id",
        "generation",
        "replay_number",
        unique=True,
        sqlite_where=_NUMBERED,
        postgresql_where=_NUMBERED,
    ),
    Index("quarantined_by_state", "sink_id", "generation", "state"),
)
