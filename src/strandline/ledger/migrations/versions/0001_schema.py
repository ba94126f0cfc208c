"""The whole schema of the first release, from the SQL file beside this module.

The SQL file is frozen, like every migration: each later change is a new migration.
"""

from pathlib import Path

from alembic import op

from strandline.ledger.migrations.dialect import for_postgres

revision = "0001"
down_revision = None


def upgrade() -> None:
    connection = op.get_bind()
    for statement in Path(__file__).with_suffix(".sql").read_text("utf-8").split("\n\n"):
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(statement)
        else:
            for translated in for_postgres(statement):
                connection.exec_driver_sql(translated)
