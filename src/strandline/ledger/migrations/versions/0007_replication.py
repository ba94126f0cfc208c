"""Dataset ids, shards, items that are not rows (purges, cuts), followers at a leader, and what a follower follows."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0007"
down_revision = "0006"
upgrade = sql_beside(
    __file__,
    replaced_triggers=(
        # A follower records recovered ranges of its leader as open blocks. They are no postponed resync.
        "no_block_before_a_postponed_resync",
        # A follower applies an item again, under another fence, if its rows could not be published.
        "a_block_moves_forward_only",
    ),
)
