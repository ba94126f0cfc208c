"""Runs of the reconciler, the lease that lets one act, files that were set aside, entries that were dropped.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _lease()
    _runs()
    _files()
    _batches()
    _refuse_illegal_moves()


def _lease() -> None:
    op.create_table(
        "sweep_lease",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("token", sa.Text),
        sa.Column("until", sa.BigInteger),
        sa.CheckConstraint("id = 1", name="one_sweep_lease"),
        sa.CheckConstraint("(token IS NULL) = (until IS NULL)", name="sweep_lease_whole"),
    )
    op.execute("INSERT INTO sweep_lease (id, fence) VALUES (1, 0)")


def _runs() -> None:
    op.create_table(
        "reconcile_run",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("act", sa.Boolean, nullable=False),
        sa.Column("delete", sa.Boolean, nullable=False),
        sa.Column("accept_loss", sa.Boolean, nullable=False),
        sa.Column("storage", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("why", sa.Text),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.CheckConstraint("state IN ('running', 'completed', 'aborted')", name="run_state_known"),
        sa.CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="run_ends"),
        sa.CheckConstraint("(state = 'aborted') = (reason IS NOT NULL)", name="aborted_has_a_reason"),
    )
    op.create_index("one_run_of_a_fence", "reconcile_run", ["fence"], unique=True)
    _index("one_run_at_a_time", "reconcile_run", ["state"], "state = 'running'", unique=True)


def _files() -> None:
    op.create_table(
        "swept_file",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("run_id", sa.BigInteger, sa.ForeignKey("reconcile_run.id"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("kept_at", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("modified_ns", sa.BigInteger),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("why", sa.Text),
        sa.Column("begun_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("kind IN ('orphan', 'foreign')", name="swept_kind_known"),
        sa.CheckConstraint(
            "state IN ('begun', 'held', 'left', 'restored', 'purging', 'purged', 'lost')", name="swept_state_known"
        ),
        sa.CheckConstraint("size >= 0", name="swept_not_negative"),
    )
    op.create_index("one_place_of_a_swept_file", "swept_file", ["kept_at"], unique=True)
    op.create_index("swept_by_run", "swept_file", ["run_id", "id"])
    _index("swept_by_path", "swept_file", ["path"], "state IN ('begun', 'held', 'left', 'purging')")
    _index("swept_begun", "swept_file", ["id"], "state = 'begun'")
    _index("swept_purging", "swept_file", ["id"], "state = 'purging'")


def _batches() -> None:
    op.create_table(
        "dropped_batch",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("run_id", sa.BigInteger, sa.ForeignKey("reconcile_run.id"), nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("samples", sa.Text, nullable=False),
        sa.Column("gone", sa.Text, nullable=False),
        sa.Column("lost", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("dropped", sa.BigInteger),
        sa.Column("begun_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("state IN ('begun', 'done', 'undone')", name="dropped_state_known"),
        sa.CheckConstraint("(state = 'done') = (dropped IS NOT NULL)", name="done_is_counted"),
        sa.CheckConstraint(
            "entries >= 1 AND (dropped IS NULL OR dropped BETWEEN 0 AND entries)", name="dropped_bounded"
        ),
    )
    op.create_index("one_batch_of_a_token", "dropped_batch", ["token"], unique=True)
    op.create_index("dropped_by_run", "dropped_batch", ["run_id", "id"])
    _index("dropped_begun", "dropped_batch", ["id"], "state = 'begun'")


def _index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


FENCE_WENT_BACK = """NEW.fence < OLD.fence
  OR (NEW.token IS NOT NULL AND NEW.fence = OLD.fence AND NEW.token <> coalesce(OLD.token, ''))"""

# A run that ended early may turn out to have done more. Why it ended is its own word, unless another said it for it.
RUN_CHANGED = """NOT (OLD.state = 'running' OR (OLD.state = 'aborted' AND NEW.state = 'aborted'
    AND (OLD.reason = 'unknown' OR NEW.reason = OLD.reason))) OR NEW.fence <> OLD.fence OR NEW.act <> OLD.act
  OR NEW.started_at <> OLD.started_at OR NEW.storage <> OLD.storage"""

RUN_NEEDED = """OLD.state = 'running' OR EXISTS (SELECT 1 FROM swept_file f
    WHERE f.run_id = OLD.id AND f.state IN ('begun', 'held', 'purging'))"""

# What was found where may be corrected by a later look; what was brought back or purged stays so.
SWEPT_CHANGED = """NEW.run_id <> OLD.run_id OR NEW.path <> OLD.path OR NEW.kept_at <> OLD.kept_at
  OR NEW.size <> OLD.size OR NEW.kind <> OLD.kind OR NEW.begun_at <> OLD.begun_at
  OR NOT ((OLD.state = 'begun')
    OR (OLD.state = 'left' AND NEW.state IN ('left', 'held', 'restored', 'purging', 'lost'))
    OR (OLD.state = 'held' AND NEW.state IN ('held', 'restored', 'purging', 'lost'))
    OR (OLD.state = 'purging' AND NEW.state IN ('purging', 'purged', 'restored', 'held'))
    OR (OLD.state = 'lost' AND NEW.state IN ('lost', 'restored')))"""

SWEPT_NEEDED = "OLD.state IN ('begun', 'held', 'purging')"

# A batch that was thought dead may still land: then the record follows what happened.
BATCH_CHANGED = """NEW.run_id <> OLD.run_id OR NEW.token <> OLD.token OR NEW.table_name <> OLD.table_name
  OR NEW.entries <> OLD.entries OR (OLD.state = 'done') OR (OLD.state = 'undone' AND NEW.state <> 'done')"""


def _refuse_illegal_moves() -> None:
    for table, move, name, condition in (
        ("sweep_lease", "UPDATE", "a_sweep_fence_only_rises", FENCE_WENT_BACK),
        ("sweep_lease", "DELETE", "the_sweep_lease_stays", "1 = 1"),
        ("reconcile_run", "UPDATE", "a_run_only_ends", RUN_CHANGED),
        ("reconcile_run", "DELETE", "a_run_that_is_needed_stays", RUN_NEEDED),
        ("swept_file", "UPDATE", "a_swept_file_goes_its_way", SWEPT_CHANGED),
        ("swept_file", "DELETE", "a_file_in_quarantine_stays", SWEPT_NEEDED),
        ("dropped_batch", "UPDATE", "a_dropped_batch_goes_its_way", BATCH_CHANGED),
    ):
        if op.get_context().dialect.name == "sqlite":
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {move} ON {table} WHEN {condition} "
                f"BEGIN SELECT RAISE(ABORT, '{name}'); END"
            )
        else:
            row = "OLD" if move == "DELETE" else "NEW"
            op.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {condition} THEN RAISE EXCEPTION '{name}' USING ERRCODE = 'check_violation'; END IF; "
                f"RETURN {row}; END $$"
            )
            op.execute(f"CREATE TRIGGER {name} BEFORE {move} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
