"""A follower records the bodies in its leader's batches, and deletes those of batches that are cut out. Consumers:
readers with a name, for which retention keeps rows. An index of published blocks by time, because each check of a table
reads the last ones. From the SQL file beside this module."""

from alembic import op

from strandline.ledger.migrations.dialect import drop_refusal, sql_beside

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    for name in ("only_a_leader_receives", "a_body_that_is_needed_stays", "a_batch_stays"):
        drop_refusal(op.get_bind(), name)
    sql_beside(__file__)()
