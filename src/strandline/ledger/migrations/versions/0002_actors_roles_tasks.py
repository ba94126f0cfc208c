"""Who did it, roles of tokens, sessions of browsers, tasks."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0002"
down_revision = "0001"
upgrade = sql_beside(__file__)
