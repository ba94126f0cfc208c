"""A sender's lanes belong to the token that claimed them, and a token may continue the line of another.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

# Where a comparison with NULL is neither true nor false, it does not refuse: each NULL that must is named.

TOKEN_CHANGED_OWNER = "coalesce(NEW.owner_id, 0) <> coalesce(OLD.owner_id, 0)"

SOURCE_CHANGED_OWNER = "OLD.owner_id IS NOT NULL AND (NEW.owner_id IS NULL OR NEW.owner_id <> OLD.owner_id)"

SOURCE_SKIPPED = "NEW.generation > OLD.generation + 1"


def upgrade() -> None:
    # A plain column: SQLite adds no foreign key to a table that is there. The program only stores ids that it read.
    for table in ("api_token", "source"):
        op.add_column(table, sa.Column("owner_id", sa.BigInteger))
    _refuse_illegal_moves()


def _refuse_illegal_moves() -> None:
    for table, name, condition in (
        ("api_token", "a_token_keeps_its_owner", TOKEN_CHANGED_OWNER),
        ("source", "a_source_keeps_its_owner", SOURCE_CHANGED_OWNER),
        ("source", "a_generation_is_one_step", SOURCE_SKIPPED),
    ):
        if op.get_context().dialect.name == "sqlite":
            op.execute(
                f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} WHEN {condition} "
                f"BEGIN SELECT RAISE(ABORT, '{name}'); END"
            )
        else:
            op.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {condition} THEN RAISE EXCEPTION '{name}' USING ERRCODE = 'check_violation'; END IF; "
                f"RETURN NEW; END $$"
            )
            op.execute(f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
