"""The ledger's table of readers that have a name, in the metadata of `core.py`. Triggers (made by the migrations)
refuse to move a watermark back."""

from __future__ import annotations

from strandline.ledger.schema.core import integers, table, texts, times

consumer = table(
    "consumer",
    integers("id", "dataset_id", "drop_after_seconds"),
    integers("watermark"),  # it has every row up to here; 0: it has none
    integers("fence"),  # rises with each query that begins to read under the name: only the latest query may commit
    integers("dropped_upto"),  # a rule has deleted rows up to here that it did not have
    texts("name", "on_lag"),
    times("added_at", "reported_at", "held_since", "removed_at"),
)
