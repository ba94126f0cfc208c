"""What a lane of a generation that sends rows again builds on: rows that the generation before delivered.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.execute("ALTER TABLE lane ADD COLUMN builds_on BIGINT CONSTRAINT builds_on_positive CHECK (builds_on >= 1)")
