"""The ledger's tables of the reconciler, in the metadata of `core.py`.

A run is `running`, then `completed` or `aborted`. `core/records/reconcile_records.py` draws the states of a swept file.
A batch of entries is `begun`, then `done` or `undone`. The lease is one row, whose fence only rises. Triggers (made by
the migrations) refuse every other transition.
"""

from __future__ import annotations

from strandline.ledger.schema.core import actor_columns, documents, flags, integers, table, texts, times, words

sweep_lease = table("sweep_lease", integers("id", "fence"), texts("token"), times("until"))

reconcile_run = table(
    "reconcile_run",
    integers("id", "fence"),
    flags("act", "delete", "accept_loss"),
    texts("storage", "state", "reason"),
    words("why"),
    documents("outcome"),  # a JSON object: see `reconcile_runs`
    texts("folder"),  # the id of a folder that other machines may not see; only there are the run's files
    times("started_at", "ended_at"),
    times("stop_asked_at"),  # it was called off; its process sees this when it renews the lease
    actor_columns(),
)

swept_file = table(
    "swept_file",
    integers("id", "run_id", "size", "modified_ns"),
    texts("kind", "table_name", "path", "kept_at", "state"),
    words("why"),
    times("begun_at", "changed_at"),
)

suspect_file = table(
    "suspect_file", texts("path_hash", "path", "table_name", "entry"), times("found_at", "released_at")
)

dropped_batch = table(
    "dropped_batch",
    integers("id", "run_id", "entries", "dropped"),
    texts("token", "table_name", "state"),
    texts("samples"),  # a JSON list of paths
    texts("gone"),  # JSON: per entry, the range of its rows and their count
    texts("lost"),  # JSON: what each sink will not get if the batch lands
    times("begun_at", "changed_at"),
)
