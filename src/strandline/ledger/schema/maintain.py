"""The ledger's tables of maintenance, in the metadata of `core.py`.

A floor only rises. A hold is what retention wanted to delete and could not; each run replaces it, and it is removed
when nothing is held. A loss is rows that a sink should have got and never will. A purge is rows that were deleted on
demand. Losses and purges are stored before the rows are deleted, and stay. A run without an end is under way. Triggers
(made by the migrations) refuse every other transition.
"""

from __future__ import annotations

from strandline.ledger.schema.core import actor_columns, documents, flags, integers, table, texts, times, words

# Rows at or below a floor may be gone from the table. A dataset without one never lost rows to retention.
floor = table("floor", integers("dataset_id", "floor", "version"), times("changed_at"))

# `rows` is NULL if they were not counted.
hold = table("hold", integers("dataset_id", "sink_id", "rows", "up_to"), times("since"))

loss = table(
    "loss",
    integers("id", "dataset_id", "sink_id", "generation", "after", "until"),
    integers("rows"),  # NULL: they can no longer be counted
    texts("partition", "reason"),
    times("at"),
)

# The range in which rows were deleted on demand, and how many. Not the predicate, which may name a person.
purge = table("purge", integers("id", "dataset_id", "lo", "hi", "rows"), times("at"))

# The folders and machines with files of rejected rows: a purge must find every copy of a row.
reject_folder = table("reject_folder", integers("dataset_id"), texts("node", "folder"), times("noted_at"))

maintenance_run = table(
    "maintenance_run",
    integers("id", "dataset_id"),
    texts("kind", "node", "outcome"),
    words("reason"),
    documents("result"),
    flags("dry_run", "by_schedule"),
    times("started_at", "heartbeat_at", "ended_at"),
    times("stop_asked_at"),  # it was called off; its process sees this at its next heartbeat
    actor_columns(),
)

# The last time that retention saw, and the machine's uptime then. One per dataset, so that each of them sees a jump.
clock = table("clock", integers("dataset_id", "boottime_us"), texts("boot"), times("wall"))
