"""What a cut does: it abandons staged and published blocks, whose rows are set aside. From the SQL file beside this
module."""

from alembic import op

from strandline.ledger.migrations.dialect import drop_refusal, sql_beside

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    drop_refusal(op.get_bind(), "a_block_moves_forward_only")
    sql_beside(__file__)()
