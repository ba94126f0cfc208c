"""A follower knows the bodies that its leader's receiver took, and forgets those of batches that are cut out. From the
SQL file beside this module."""

from alembic import op

from strandline.ledger.migrations.dialect import drop_refusal, sql_beside

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    for name in ("only_a_leader_receives", "a_body_that_is_needed_stays", "a_batch_stays"):
        drop_refusal(op.get_bind(), name)
    sql_beside(__file__)()
