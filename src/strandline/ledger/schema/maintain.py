"""The ledger's tables of maintenance, in the metadata of `core.py`.

A floor only rises. A hold is what retention wanted to delete and could not; each run replaces it, and it is removed
when nothing is held. A loss is rows that a sink should have got and never will. A purge is rows that were deleted on
demand. Losses and purges are stored before the rows are deleted, and stay. A run without an end is under way. Triggers
(made by the migrations) refuse every other transition.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Table, Text

from strandline.ledger.schema.core import RowId, UtcMicros, actor_columns, metadata

# Rows at or below a floor may be gone from the table. A dataset without one never lost rows to retention.
floor = Table(
    "floor",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("floor", BigInteger, nullable=False),
    Column("changed_at", UtcMicros, nullable=False),
    Column("version", BigInteger, nullable=False),
)

hold = Table(
    "hold",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("sink_id", BigInteger, ForeignKey("sink.id"), primary_key=True),
    Column("rows", BigInteger),  # NULL: not counted
    Column("since", UtcMicros, nullable=False),
    Column("up_to", BigInteger, nullable=False),
)

loss = Table(
    "loss",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("sink_id", BigInteger, ForeignKey("sink.id"), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("partition", Text, nullable=False),
    Column("after", BigInteger),
    Column("until", BigInteger, nullable=False),
    Column("rows", BigInteger),  # NULL: nobody can count them any more
    Column("reason", Text, nullable=False),
    Column("at", UtcMicros, nullable=False),
)

# The range in which rows were deleted on demand, and how many. Not the predicate, which may name a person.
purge = Table(
    "purge",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("lo", BigInteger, nullable=False),
    Column("hi", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("at", UtcMicros, nullable=False),
)

# The folders and machines with files of rejected rows: a purge must find every copy of a row.
reject_folder = Table(
    "reject_folder",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True),
    Column("node", Text, primary_key=True),
    Column("folder", Text, primary_key=True),
    Column("noted_at", UtcMicros, nullable=False),
)

maintenance_run = Table(
    "maintenance_run",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("dry_run", Boolean, nullable=False),
    Column("by_schedule", Boolean, nullable=False),
    Column("started_at", UtcMicros, nullable=False),
    Column("heartbeat_at", UtcMicros, nullable=False),
    Column("ended_at", UtcMicros),
    Column("outcome", Text),
    Column("reason", Text),
    Column("result", Text),  # JSON
    *actor_columns(),
)

# The last time that retention saw, and the machine's uptime then. One per dataset, so that each of them sees a jump.
clock = Table(
    "clock",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey("dataset.id"), primary_key=True, autoincrement=False),
    Column("wall", UtcMicros, nullable=False),
    Column("boot", Text),
    Column("boottime_us", BigInteger),
)
