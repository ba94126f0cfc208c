"""Numbers that others wrote into a table: how many rows share one with a row of ours, and up to which snapshot the
numbers of main were looked at before a block was placed. Rows that others appended are numbered by schedule.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

KIND_KNOWN = "kind IN ('compact', 'retain', 'expire', 'purge', 'number')"
COLUMNS = (
    "id, dataset_id, kind, node, dry_run, by_schedule, started_at, heartbeat_at, ended_at, outcome, reason, result"
)
RUN_CHANGED = """OLD.ended_at IS NOT NULL OR NEW.dataset_id <> OLD.dataset_id OR NEW.kind <> OLD.kind
  OR NEW.dry_run <> OLD.dry_run OR NEW.started_at <> OLD.started_at OR NEW.node <> OLD.node
  OR NEW.by_schedule <> OLD.by_schedule"""


def upgrade() -> None:
    op.add_column("table_count", sa.Column("twice", sa.BigInteger))
    op.add_column("table_count", sa.Column("twice_first", sa.BigInteger))
    op.execute("DELETE FROM table_count")  # counted without looking for numbers that stand twice
    op.create_table(
        "table_check",
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), primary_key=True),
        sa.Column("snapshot_id", sa.BigInteger),
        sa.Column("beyond", sa.BigInteger),
    )
    _runs_that_number()


def _runs_that_number() -> None:
    if op.get_context().dialect.name != "sqlite":
        op.drop_constraint("run_kind_known", "maintenance_run", type_="check")
        op.create_check_constraint("run_kind_known", "maintenance_run", KIND_KNOWN)
        return
    # SQLite cannot change a CHECK: the table is made anew, with all that hangs on it.
    op.execute("DROP TRIGGER a_run_is_only_ended")
    op.drop_index("one_run_of_a_kind", "maintenance_run")
    op.drop_index("runs_by_kind", "maintenance_run")
    op.rename_table("maintenance_run", "maintenance_run_before")
    op.create_table(
        "maintenance_run",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("dry_run", sa.Boolean, nullable=False),
        sa.Column("by_schedule", sa.Boolean, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("outcome", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("result", sa.Text),
        sa.CheckConstraint(KIND_KNOWN, name="run_kind_known"),
        sa.CheckConstraint("(ended_at IS NULL) = (outcome IS NULL)", name="ended_has_an_outcome"),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('done', 'skipped', 'refused', 'failed', 'died')", name="outcome_known"
        ),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('done', 'died') OR reason IS NOT NULL", name="not_done_has_a_reason"
        ),
    )
    op.execute(f"INSERT INTO maintenance_run ({COLUMNS}) SELECT {COLUMNS} FROM maintenance_run_before")
    op.drop_table("maintenance_run_before")
    op.create_index(
        "one_run_of_a_kind",
        "maintenance_run",
        ["dataset_id", "kind"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
    )
    op.create_index("runs_by_kind", "maintenance_run", ["dataset_id", "kind", "id"])
    op.execute(
        f"CREATE TRIGGER a_run_is_only_ended BEFORE UPDATE ON maintenance_run WHEN {RUN_CHANGED} "
        "BEGIN SELECT RAISE(ABORT, 'a_run_is_only_ended'); END"
    )
