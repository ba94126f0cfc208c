"""Numbers that others wrote into a table: how many rows share one with a row of ours, and up to which snapshot the
numbers of main were looked at before a block was placed.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("table_count", sa.Column("twice", sa.BigInteger))
    op.add_column("table_count", sa.Column("twice_first", sa.BigInteger))
    op.execute("DELETE FROM table_count")  # counted without looking for numbers that stand twice
    op.create_table(
        "table_check",
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), primary_key=True),
        sa.Column("snapshot_id", sa.BigInteger),
        sa.Column("beyond", sa.BigInteger),
    )
