"""Files that are probably those of entries whose path is damaged: not swept until a person says so. And in which folder
a run has looked, where machines may have folders of their own under one path.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("reconcile_run", sa.Column("folder", sa.Text))
    op.create_table(
        "suspect_file",
        sa.Column("path_hash", sa.Text, primary_key=True),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("found_at", sa.BigInteger, nullable=False),
        sa.Column("released_at", sa.BigInteger),
        sa.CheckConstraint("released_at IS NULL OR released_at >= found_at", name="released_after_it_was_found"),
    )
