"""A follower records the bodies in its leader's batches, and deletes those of batches that are cut out. Consumers:
readers with a name, for which retention keeps rows. An index of published blocks by time, because each check of a table
reads the last ones."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0010"
down_revision = "0009"
upgrade = sql_beside(
    __file__, replaced_triggers=("only_a_leader_receives", "a_body_that_is_needed_stays", "a_batch_stays")
)
