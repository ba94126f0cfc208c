"""Runs of maintenance and of the reconciler can be called off by any process."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0005"
down_revision = "0004"
upgrade = sql_beside(__file__)
