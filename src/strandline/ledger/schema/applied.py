"""The ledger's table of rules and schedules that were applied, in the metadata of `core.py`."""

from __future__ import annotations

from sqlalchemy import Column, Table, Text

from strandline.ledger.schema.core import UtcMicros, metadata

applied_setting = Table(
    "applied_setting",
    metadata,
    Column("name", Text, primary_key=True),  # `retain.` and a dataset, or `schedule.` and a kind of work
    Column("value", Text, nullable=False),  # a rule as JSON, or the text of a schedule
    Column("applied_at", UtcMicros, nullable=False),
)
