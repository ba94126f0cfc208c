"""The ledger's tables of the API, in the metadata of `core.py`: sessions of browsers, and tasks.

A session is there until somebody ends it. A task is under way, then it ends once, as `done`, `refused`, `failed`,
`cancelled` or `died`. While it is under way it has a lease, and nobody can take that over: a task whose lease has run
out has died. Triggers (made by the migrations) refuse every other transition.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Table, Text

from strandline.ledger.schema.core import RowId, UtcMicros, metadata

web_session = Table(
    "web_session",
    metadata,
    Column("id_hash", Text, primary_key=True),
    Column("token_id", BigInteger, ForeignKey("api_token.id"), nullable=False),
    Column("created_at", UtcMicros, nullable=False),
    Column("expires_at", UtcMicros, nullable=False),
)

task = Table(
    "task",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),  # what it works on: a sink, a dataset; empty: the whole lake
    Column("node", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("trigger", Text, nullable=False),
    Column("started_at", UtcMicros, nullable=False),
    Column("lease_token", Text),
    Column("lease_until", UtcMicros),
    Column("stop_asked_at", UtcMicros),  # somebody has called it off; its process sees this when it renews the lease
    Column("ended_at", UtcMicros),
    Column("outcome", Text),
    Column("result", Text),  # JSON
    Column("error", Text),  # JSON
)
