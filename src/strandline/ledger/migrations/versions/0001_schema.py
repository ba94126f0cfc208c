"""The whole schema of the first release, from the SQL file beside this module.

The SQL file is frozen, like every migration: each later change is a new migration.
"""

from pathlib import Path

from alembic import op

from strandline.ledger.migrations.dialect import execute_file

revision = "0001"
down_revision = None


def upgrade() -> None:
    execute_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
