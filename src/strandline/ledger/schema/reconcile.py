"""The ledger's tables of the reconciler, in the metadata of `core.py`.

A run is `running`, then `completed` or `aborted`. `core/reconcile_records.py` draws the states of a swept file. A batch
of entries is `begun`, then `done` or `undone`. The lease is one row, whose fence only rises. Triggers (made by the
migrations) refuse every other transition.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Table, Text

from strandline.ledger.schema.core import RowId, UtcMicros, actor_columns, metadata

sweep_lease = Table(
    "sweep_lease",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("fence", BigInteger, nullable=False),
    Column("token", Text),
    Column("until", UtcMicros),
)

reconcile_run = Table(
    "reconcile_run",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("act", Boolean, nullable=False),
    Column("delete", Boolean, nullable=False),
    Column("accept_loss", Boolean, nullable=False),
    Column("storage", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("why", Text),
    Column("outcome", Text, nullable=False),  # a JSON object: see `reconcile_runs`
    Column("started_at", UtcMicros, nullable=False),
    Column("ended_at", UtcMicros),
    Column("folder", Text),  # the id of a folder that other machines may not see; only there are the run's files
    *actor_columns(),
)

swept_file = Table(
    "swept_file",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("run_id", BigInteger, ForeignKey("reconcile_run.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("table_name", Text),
    Column("path", Text, nullable=False),
    Column("kept_at", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("modified_ns", BigInteger),
    Column("state", Text, nullable=False),
    Column("why", Text),
    Column("begun_at", UtcMicros, nullable=False),
    Column("changed_at", UtcMicros, nullable=False),
)

suspect_file = Table(
    "suspect_file",
    metadata,
    Column("path_hash", Text, primary_key=True),
    Column("path", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("entry", Text, nullable=False),
    Column("found_at", UtcMicros, nullable=False),
    Column("released_at", UtcMicros),
)

dropped_batch = Table(
    "dropped_batch",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("run_id", BigInteger, ForeignKey("reconcile_run.id"), nullable=False),
    Column("token", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("samples", Text, nullable=False),  # a JSON list of paths
    Column("gone", Text, nullable=False),  # JSON: per entry, the range of its rows and their count
    Column("lost", Text, nullable=False),  # JSON: what each sink will not get if the batch lands
    Column("state", Text, nullable=False),
    Column("dropped", BigInteger),
    Column("begun_at", UtcMicros, nullable=False),
    Column("changed_at", UtcMicros, nullable=False),
)
