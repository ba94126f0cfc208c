"""The ledger's tables of receiving and of rows that sinks refused, in the metadata of `core.py`.

A received body is identified by a range of a sender's lane, or by an idempotency key of a token. Its identity, rows
and digest never change. It waits, is placed in a batch, and gets its sequence numbers when the batch is published.
Then its spool file is removed. A body without rows has no file and does not wait.

A batch that is not published may end: as `divided` (its bodies are in its parts), `set_aside` (its only body waits for
a person), `replayed` (that body is in a new batch) or `discarded`. It never gets a block again.

A site that follows receives nothing. It records bodies of its leader's batches, each in a published batch, and deletes
those of batches that it gives up (`receive/announced_bodies.py`). Only a follower may delete batches, and bodies that
are still needed.

A quarantined row is `held`, then `replaying` and `replayed`, or `discarded`. Triggers (made by the migrations) refuse
every other transition.
"""

from __future__ import annotations

from sqlalchemy import literal_column

from strandline.ledger.schema.core import hash_column, integers, table, texts, times, words

# `datasets` is a JSON list of names; NULL: every dataset.
api_token = table(
    "api_token",
    integers("id"),
    integers("owner_id"),  # the first token of its line (`receive/tokens.py`); NULL: this token
    texts("name", "hash", "datasets", "role"),
    times("created_at", "revoked_at"),
    times("expires_at"),  # NULL: never
)

# Which sink of which lake feeds a dataset of ours, and which token owns it: the record that the sender asks for.
source = table(
    "source",
    integers("id", "dataset_id", "generation"),
    integers("term"),  # of the site that leads the sender's lake
    integers("owner_id"),  # NULL: claimed before owners were stored
    texts("lake", "source_dataset", "instance", "table_uuid"),
    times("created_at"),
)

# A sender's lane. A transaction that adds ranges locks this row, so that no two add ranges that overlap.
source_lane = table(
    "source_lane",
    integers("id", "dataset_id", "generation"),
    texts("lake", "instance", "source_dataset", "partition"),
    hash_column(),
    times("created_at"),
)

# Triggers guard how a batch may end (`a_batch_is_only_published`) and where its bodies may go (`a_body_never_changes`):
# - A block that is not abandoned may still bring the batch into the table, so the batch must not end before it is.
#   Bodies of a dropped dataset can be discarded whatever the state of their blocks: they go nowhere else.
# - A body leaves a batch only for a part of it. Its spool file is removed only when its rows are published or
#   discarded.
# - A process that held the batch when it ended may still try to ingest it, but its bodies are in other batches by now:
#   `an_ended_batch_gets_no_block`.
receive_batch = table(
    "receive_batch",
    integers("id", "dataset_id", "rows", "lo", "hi", "failures"),
    integers("failed_from"),  # the lake's counter at the first failure
    texts("batch_id", "lease_token", "ending"),
    words("reason"),
    times("created_at", "lease_until", "published_at", "retry_at", "ended_at"),
)

received = table(
    "received",
    integers("id", "dataset_id", "lane_id", "lo", "hi", "token_id", "rows", "size", "spool_bytes", "batch", "place"),
    texts("key", "digest", "spool"),
    times("received_at", "spool_removed_at"),
)

# The dataset's receiver accepts and ingests nothing until a person has released it.
receive_hold = table("receive_hold", integers("dataset_id"), words("reason"), times("since"))

# `rows > 0`, not `spool IS NOT NULL`: for that, SQLite would use the index of all spool files there ever were.
# A literal: with a parameter, the databases do not use their partial indexes.
HAS_ROWS = received.c.rows > literal_column("0")
UNFINISHED = (receive_batch.c.published_at.is_(None), receive_batch.c.ended_at.is_(None))

# `options` is a JSON object of texts.
quarantined = table(
    "quarantined",
    integers("id", "sink_id", "generation", "lane_id", "seq", "size", "replay_number"),
    texts("object", "options", "form", "state"),
    words("reason"),
    times("at", "changed_at"),
)
