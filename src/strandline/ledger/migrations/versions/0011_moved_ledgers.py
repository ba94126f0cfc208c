"""Whether a migration moves the lake away from this ledger, or to it. From the SQL file beside this module."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0011"
down_revision = "0010"
upgrade = sql_beside(__file__)
