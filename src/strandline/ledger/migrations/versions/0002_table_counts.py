"""How many rows of a table are not ours, as last counted."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "table_count",
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), primary_key=True),
        sa.Column("snapshot_id", sa.BigInteger),
        sa.Column("unnumbered", sa.BigInteger, nullable=False),
        sa.Column("foreign_rows", sa.BigInteger, nullable=False),
        sa.Column("counted_at", sa.BigInteger, nullable=False),
    )
