"""What the ledger remembers of a table: where our tag was, doubts about its history, why it could not be settled."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "table_state",
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), primary_key=True),
        sa.Column("settled_snapshot", sa.BigInteger),
        sa.Column("settled_sequence", sa.BigInteger),
        sa.Column("doubt", sa.Text),
        sa.Column("trouble", sa.Text),
        sa.Column("trouble_since", sa.BigInteger),
        sa.CheckConstraint("(settled_snapshot IS NULL) = (settled_sequence IS NULL)", name="settled_has_a_sequence"),
        sa.CheckConstraint("(trouble IS NULL) = (trouble_since IS NULL)", name="trouble_has_a_time"),
    )
