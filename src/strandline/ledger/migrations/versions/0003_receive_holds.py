"""Datasets whose receiver is on hold, because a restored ledger cannot know which bodies the table has."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.execute(
        "CREATE TABLE receive_hold (dataset_id BIGINT NOT NULL, since BIGINT NOT NULL, reason TEXT NOT NULL, "
        "PRIMARY KEY (dataset_id), FOREIGN KEY (dataset_id) REFERENCES dataset (id))"
    )
