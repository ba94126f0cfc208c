"""The ledger's tables of the reconciler, in the metadata of `core.py`.

A run is `running`, then `completed` or `aborted`. `core/reconcile_records.py` draws the states of a swept file. A batch
of entries is `begun`, then `done` or `undone`. The lease is one row, whose fence only rises. Triggers (made by the
migrations) refuse every other transition.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, ForeignKey, Index, Table, Text, text

from strandline.ledger.schema.core import RowId, UtcMicros, metadata

_RUNNING = text("state = 'running'")
_THERE = text("state IN ('begun', 'held', 'left', 'purging')")
_BEGUN = text("state = 'begun'")
_PURGING = text("state = 'purging'")

sweep_lease = Table(
    "sweep_lease",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("fence", BigInteger, nullable=False),
    Column("token", Text),
    Column("until", UtcMicros),
    CheckConstraint("id = 1", name="one_sweep_lease"),
    CheckConstraint("(token IS NULL) = (until IS NULL)", name="sweep_lease_whole"),
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
    CheckConstraint("state IN ('running', 'completed', 'aborted')", name="run_state_known"),
    CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="run_ends"),
    CheckConstraint("(state = 'aborted') = (reason IS NOT NULL)", name="aborted_has_a_reason"),
    Index("one_run_of_a_fence", "fence", unique=True),
    Index("one_run_at_a_time", "state", unique=True, sqlite_where=_RUNNING, postgresql_where=_RUNNING),
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
    CheckConstraint("kind IN ('orphan', 'foreign')", name="swept_kind_known"),
    CheckConstraint(
        "state IN ('begun', 'held', 'left', 'restored', 'purging', 'purged', 'lost')", name="swept_state_known"
    ),
    CheckConstraint("size >= 0", name="swept_not_negative"),
    Index("one_place_of_a_swept_file", "kept_at", unique=True),
    Index("swept_by_run", "run_id", "id"),
    Index("swept_by_path", "path", sqlite_where=_THERE, postgresql_where=_THERE),
    Index("swept_begun", "id", sqlite_where=_BEGUN, postgresql_where=_BEGUN),
    Index("swept_purging", "id", sqlite_where=_PURGING, postgresql_where=_PURGING),
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
    CheckConstraint("released_at IS NULL OR released_at >= found_at", name="released_after_it_was_found"),
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
    CheckConstraint("state IN ('begun', 'done', 'undone')", name="dropped_state_known"),
    CheckConstraint("(state = 'done') = (dropped IS NOT NULL)", name="done_is_counted"),
    CheckConstraint("entries >= 1 AND (dropped IS NULL OR dropped BETWEEN 0 AND entries)", name="dropped_bounded"),
    Index("one_batch_of_a_token", "token", unique=True),
    Index("dropped_by_run", "run_id", "id"),
    Index("dropped_begun", "id", sqlite_where=_BEGUN, postgresql_where=_BEGUN),
)
