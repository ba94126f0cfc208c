"""Rules and schedules that were applied, and whether a sink was added for new rows only: from the SQL file beside this
module."""

from pathlib import Path

from alembic import op

from strandline.ledger.migrations.dialect import execute_file

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    execute_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
