"""An index of published blocks by the time at which they were published: each check of a table asks for the last ones.
From the SQL file beside this module."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0012"
down_revision = "0011"
upgrade = sql_beside(__file__)
