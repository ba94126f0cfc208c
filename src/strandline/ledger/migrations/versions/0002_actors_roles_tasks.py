"""Who did it, roles of tokens, sessions of browsers, tasks: from the SQL file beside this module."""

from pathlib import Path

from alembic import op

from strandline.ledger.migrations.dialect import execute_file

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    execute_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
