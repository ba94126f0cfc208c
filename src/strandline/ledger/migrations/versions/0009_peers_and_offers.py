"""What a sink's destination was when it was claimed, since when a sink has failed in the same way, and which chunks may
have been sent.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.execute("ALTER TABLE sink ADD COLUMN peer TEXT CONSTRAINT peer_known CHECK (peer IN ('receiver', 'other'))")
    op.execute("ALTER TABLE sink ADD COLUMN failing_since BIGINT")
    # Nobody noted until now what was sent: every chunk that is there may have been.
    op.execute("ALTER TABLE chunk ADD COLUMN offered BOOLEAN NOT NULL DEFAULT TRUE")
