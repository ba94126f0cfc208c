"""A dataset whose resync was postponed gets no new block: the ledger checks it, with an index, at each insert."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0006"
down_revision = "0005"
upgrade = sql_beside(__file__)
