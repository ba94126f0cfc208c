"""An index of abandoned blocks: `status` asks for the highest sequence number of each dataset's blocks. From the SQL
file beside this module."""

from pathlib import Path

from alembic import op

from strandline.ledger.migrations.dialect import execute_file

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    execute_file(op.get_bind(), Path(__file__).with_suffix(".sql"))
