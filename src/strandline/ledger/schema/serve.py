"""The ledger's tables of the API, in the metadata of `core.py`: sessions of browsers, and tasks.

A session stays until it is ended. A task is under way, then it ends once, as `done`, `refused`, `failed`,
`cancelled` or `died`. While it is under way it has a lease, which no other process can take over: a task whose lease
has run out has died. Triggers (made by the migrations) refuse every other transition."""

from __future__ import annotations

from strandline.ledger.schema.core import actor_columns, documents, integers, table, texts, times

web_session = table("web_session", texts("id_hash"), integers("token_id"), times("created_at", "expires_at"))

task = table(
    "task",
    integers("id"),
    texts("subject"),  # what it works on: a sink, a dataset; empty: the whole lake
    texts("kind", "node", "lease_token", "outcome"),
    documents("result", "error"),
    times("started_at", "lease_until", "ended_at"),
    times("stop_asked_at"),  # it was called off; its process sees this when it renews the lease
    actor_columns(),
)
