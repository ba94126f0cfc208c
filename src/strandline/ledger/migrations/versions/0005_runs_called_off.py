"""Runs of maintenance and of the reconciler can be called off by any process: from the SQL file beside this module."""

from pathlib import Path

from alembic import op

from strandline.ledger.migrations.dialect import execute_file

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    execute_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
