"""An index of abandoned blocks: `status` asks for the highest sequence number of each dataset's blocks."""

from strandline.ledger.migrations.dialect import sql_beside

revision = "0004"
down_revision = "0003"
upgrade = sql_beside(__file__)
