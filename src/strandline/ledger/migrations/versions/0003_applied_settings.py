"""Rules and schedules that were applied, and whether a sink was added for new rows only."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0003"
down_revision = "0002"
upgrade = sql_beside(__file__)
