"""Dataset ids, shards, items that are not rows (purges, cuts), followers at a leader, and what a follower follows. From
the SQL file beside this module."""

from alembic import op

from strandline.ledger.migrations.dialect import drop_refusal, sql_beside

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    # A follower records recovered ranges of its leader as open blocks. They are no postponed resync.
    drop_refusal(op.get_bind(), "no_block_before_a_postponed_resync")
    # And it can get their rows again: what cannot be published is put back and applied again, under another fence.
    drop_refusal(op.get_bind(), "a_block_moves_forward_only")
    sql_beside(__file__)()
