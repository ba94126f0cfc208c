"""The sequence, datasets, blocks and the audit log.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "sequence",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="one_sequence"), primary_key=True),
        sa.Column("lake", sa.Text, nullable=False),
        sa.Column("last", sa.BigInteger, sa.CheckConstraint("last >= 0", name="last_not_negative"), nullable=False),
        sa.Column("epoch", sa.BigInteger, sa.CheckConstraint("epoch >= 1", name="epoch_positive"), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "dataset",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("table_uuid", sa.Text, nullable=False),
        sa.Column("deliver_by", sa.Text, nullable=False),
        sa.Column("adopted", sa.Boolean, nullable=False),
        sa.Column("history", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("dropped_at", sa.BigInteger),
        sa.CheckConstraint("history IN ('deliver', 'skip')", name="history_known"),
    )
    _index("one_dataset_of_a_name", "dataset", ["name"], "dropped_at IS NULL", unique=True)
    op.create_table(
        "block",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("lo", sa.BigInteger, nullable=False),
        sa.Column("hi", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("batch_id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("lease_until", sa.BigInteger),
        sa.Column("snapshot_id", sa.BigInteger),
        sa.Column("row_count", sa.BigInteger),
        sa.Column("reason", sa.Text),
        sa.Column("reserved_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("kind IN ('batch', 'adopted', 'recovered')", name="kind_known"),
        sa.CheckConstraint("lo >= 1 AND hi >= lo", name="range_not_empty"),
        sa.CheckConstraint("state IN ('reserved', 'staged', 'published', 'abandoned')", name="state_known"),
        sa.CheckConstraint("(state = 'reserved') = (lease_until IS NOT NULL)", name="reserved_has_a_lease"),
        sa.CheckConstraint("state <> 'staged' OR snapshot_id IS NOT NULL", name="staged_has_a_snapshot"),
        sa.CheckConstraint("state IN ('staged', 'published') OR snapshot_id IS NULL", name="snapshot_only_when_staged"),
        sa.CheckConstraint("(state = 'abandoned') = (reason IS NOT NULL)", name="abandoned_has_a_reason"),
        sa.CheckConstraint(
            "(state = 'published' AND kind <> 'recovered') = (row_count IS NOT NULL)", name="published_has_a_count"
        ),
    )
    _index("one_block_of_a_batch", "block", ["dataset_id", "batch_id"], "state <> 'abandoned'", unique=True)
    _index("one_block_of_a_number", "block", ["lo"], "kind <> 'recovered'", unique=True)
    _index("open_blocks", "block", ["dataset_id", "lo"], "state IN ('reserved', 'staged')")
    _index("published_blocks", "block", ["dataset_id", "hi"], "state = 'published'")
    op.create_table(
        "input_file",
        sa.Column("block_id", sa.BigInteger, sa.ForeignKey("block.id"), primary_key=True),
        sa.Column("path", sa.Text, primary_key=True),
    )
    op.create_table(
        "audit",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    _refuse_illegal_moves()


def _index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


COUNTER_WENT_BACK = "NEW.last < OLD.last OR NEW.epoch < OLD.epoch OR NEW.lake <> OLD.lake"

ILLEGAL_MOVE = """NEW.lo <> OLD.lo OR NEW.hi <> OLD.hi OR NEW.dataset_id <> OLD.dataset_id OR NEW.fence < OLD.fence
  OR NOT (NEW.state = OLD.state
    OR (OLD.state = 'reserved' AND NEW.state IN ('staged', 'published', 'abandoned'))
    OR (OLD.state = 'staged' AND NEW.state = 'published')
    OR (OLD.state = 'staged' AND NEW.state = 'abandoned' AND NEW.reason LIKE 'voided:%'))"""


def _refuse_illegal_moves() -> None:
    for table, name, condition in (
        ("sequence", "the_counter_never_goes_back", COUNTER_WENT_BACK),
        ("block", "a_block_moves_forward_only", ILLEGAL_MOVE),
    ):
        if op.get_context().dialect.name == "sqlite":
            op.execute(
                f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} WHEN {condition} "
                f"BEGIN SELECT RAISE(ABORT, '{name}'); END"
            )
        else:
            op.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {condition} THEN RAISE EXCEPTION '{name}' USING ERRCODE = 'check_violation'; END IF; RETURN NEW; "
                f"END $$".replace("%", "%%")
            )
            op.execute(f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
