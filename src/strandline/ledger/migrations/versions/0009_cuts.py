"""What a cut does: it abandons staged and published blocks, whose rows are set aside."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0009"
down_revision = "0008"
upgrade = sql_beside(__file__, replaced_triggers=("a_block_moves_forward_only",))
