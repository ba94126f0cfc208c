"""The whole schema of the first release, from the SQL file beside this module.

The SQL file is frozen, like every migration: each later change is a new migration.
"""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0001"
down_revision = None
upgrade = sql_beside(__file__)
