"""Floors, holds, losses and purges of maintenance; its runs, and the clock that retention trusts.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _floors_and_holds()
    _losses_and_purges()
    _runs_and_the_clock()
    _refuse_illegal_moves()


def _floors_and_holds() -> None:
    op.create_table(
        "floor",
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), primary_key=True),
        sa.Column("floor", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.CheckConstraint("floor >= 0", name="floor_not_negative"),
    )
    op.create_table(
        "hold",
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), primary_key=True),
        sa.Column("sink_id", sa.BigInteger, sa.ForeignKey("sink.id"), primary_key=True),
        sa.Column("rows", sa.BigInteger),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("up_to", sa.BigInteger, nullable=False),
        sa.CheckConstraint("rows >= 0", name="held_not_negative"),
        sa.CheckConstraint("up_to >= 1", name="held_up_to_a_number"),
    )


def _losses_and_purges() -> None:
    op.create_table(
        "loss",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("sink_id", sa.BigInteger, sa.ForeignKey("sink.id"), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("partition", sa.Text, nullable=False),
        sa.Column("after", sa.BigInteger),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("generation >= 1", name="loss_generation_positive"),
        sa.CheckConstraint("until >= 1 AND (after IS NULL OR (after >= 1 AND after < until))", name="loss_not_empty"),
        sa.CheckConstraint("rows >= 0", name="loss_not_negative"),
        sa.CheckConstraint("reason IN ('dropped', 'deleted', 'purged', 'forgotten')", name="loss_reason_known"),
        sa.CheckConstraint("(rows IS NULL) = (reason = 'forgotten')", name="only_the_forgotten_is_not_counted"),
    )
    op.create_index("losses_of_a_sink", "loss", ["sink_id", "generation", "partition", "until"])
    op.create_table(
        "purge",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("lo", sa.BigInteger, nullable=False),
        sa.Column("hi", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("lo >= 1 AND hi >= lo", name="purge_not_empty"),
        sa.CheckConstraint("rows >= 1", name="purge_has_rows"),
    )
    op.create_index("purges_of_a_dataset", "purge", ["dataset_id", "lo"])


def _runs_and_the_clock() -> None:
    op.create_table(
        "maintenance_run",
        sa.Column("id", ROW_ID, primary_key=True),
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
        sa.CheckConstraint("kind IN ('compact', 'retain', 'expire', 'purge')", name="run_kind_known"),
        sa.CheckConstraint("(ended_at IS NULL) = (outcome IS NULL)", name="ended_has_an_outcome"),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('done', 'skipped', 'refused', 'failed', 'died')", name="outcome_known"
        ),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('done', 'died') OR reason IS NOT NULL", name="not_done_has_a_reason"
        ),
    )
    _index("one_run_of_a_kind", "maintenance_run", ["dataset_id", "kind"], "ended_at IS NULL", unique=True)
    op.create_index("runs_by_kind", "maintenance_run", ["dataset_id", "kind", "id"])
    op.create_table(
        "clock",
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), primary_key=True, autoincrement=False),
        sa.Column("wall", sa.BigInteger, nullable=False),
        sa.Column("boot", sa.Text),
        sa.Column("boottime_us", sa.BigInteger),
        sa.CheckConstraint("(boot IS NULL) = (boottime_us IS NULL)", name="boot_whole"),
    )


def _index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


FLOOR_WENT_BACK = """NEW.floor < OLD.floor OR NEW.version <= OLD.version OR NEW.dataset_id <> OLD.dataset_id"""

HOLD_CHANGED = """NEW.dataset_id <> OLD.dataset_id OR NEW.sink_id <> OLD.sink_id OR NEW.since <> OLD.since"""

RUN_CHANGED = """OLD.ended_at IS NOT NULL OR NEW.dataset_id <> OLD.dataset_id OR NEW.kind <> OLD.kind
  OR NEW.dry_run <> OLD.dry_run OR NEW.started_at <> OLD.started_at OR NEW.node <> OLD.node
  OR NEW.by_schedule <> OLD.by_schedule"""


def _refuse_illegal_moves() -> None:
    for table, move, name, condition in (
        ("floor", "UPDATE", "a_floor_never_goes_back", FLOOR_WENT_BACK),
        ("floor", "DELETE", "a_floor_stays", "1 = 1"),
        ("hold", "UPDATE", "a_hold_keeps_its_beginning", HOLD_CHANGED),
        ("loss", "UPDATE", "a_loss_never_changes", "1 = 1"),
        ("loss", "DELETE", "a_loss_stays", "1 = 1"),
        ("purge", "UPDATE", "a_purge_never_changes", "1 = 1"),
        ("purge", "DELETE", "a_purge_stays", "1 = 1"),
        ("maintenance_run", "UPDATE", "a_run_is_only_ended", RUN_CHANGED),
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
