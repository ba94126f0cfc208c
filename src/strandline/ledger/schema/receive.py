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

from sqlalchemy import BigInteger, Column, ForeignKey, Table, Text, literal_column

from strandline.ledger.schema.core import RowId, UtcMicros, hash_column, metadata

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
    Column("role", Text, nullable=False),
    Column("expires_at", UtcMicros),  # NULL: never
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
)

# Triggers guard how a batch may end (`a_batch_is_only_published`) and where its bodies may go (`a_body_never_changes`):
# - A block that is not abandoned may still bring the batch into the table, so the batch must not end before it is.
#   Bodies of a dropped dataset can be discarded whatever the state of their blocks: they go nowhere else.
# - A body leaves a batch only for a part of it. Its spool file is removed only when its rows are published or
#   discarded.
# - A process that held the batch when it ended may still try to ingest it, but its bodies are in other batches by now:
#   `an_ended_batch_gets_no_block`.
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
)

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
)

# The dataset's receiver accepts and ingests nothing until a person has released it.
receive_hold = Table(
    "receive_hold",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("since", UtcMicros, nullable=False),
    Column("reason", Text, nullable=False),
)

# `rows > 0`, not `spool IS NOT NULL`: for that, SQLite would use the index of all spool files there ever were.
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
)
