"""Folders that refused lines were written to, so that a purge finds them.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "reject_folder",
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("folder", sa.Text, primary_key=True),
        sa.Column("noted_at", sa.BigInteger, nullable=False),
    )
