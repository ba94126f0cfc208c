"""What a take-over needs: a site's number, a promotion that is under way, a leader that another one has replaced, and
the term of each followed dataset."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0008"
down_revision = "0007"
upgrade = sql_beside(__file__)
