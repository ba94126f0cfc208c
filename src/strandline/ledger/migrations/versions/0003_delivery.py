"""Sinks, lanes, intents and chunks.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _sinks_and_lanes()
    _intents_and_chunks()
    _refuse_illegal_moves()


def _sinks_and_lanes() -> None:
    op.create_table(
        "sink",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("start", sa.BigInteger),
        sa.Column("planned", sa.BigInteger),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("retry_at", sa.BigInteger),
        sa.Column("lease_token", sa.Text),
        sa.Column("lease_until", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("removed_at", sa.BigInteger),
        sa.CheckConstraint("generation >= 1", name="generation_positive"),
        sa.CheckConstraint("start >= 1", name="start_positive"),
        sa.CheckConstraint("planned >= 1", name="planned_positive"),
        sa.CheckConstraint(
            "start IS NULL OR (planned IS NOT NULL AND planned >= start)", name="planned_from_the_start"
        ),
        sa.CheckConstraint("state IN ('active', 'paused', 'stopped')", name="sink_state_known"),
        sa.CheckConstraint("state <> 'stopped' OR reason IS NOT NULL", name="stopped_has_a_reason"),
        sa.CheckConstraint("failures >= 0", name="failures_not_negative"),
        sa.CheckConstraint("(lease_token IS NULL) = (lease_until IS NULL)", name="lease_whole"),
    )
    _index("one_sink_of_a_name", "sink", ["name"], "removed_at IS NULL", unique=True)
    _index("one_sink_of_a_destination", "sink", ["destination"], "removed_at IS NULL", unique=True)
    op.create_table(
        "lane",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("sink_id", sa.BigInteger, sa.ForeignKey("sink.id"), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("partition", sa.Text, nullable=False),
        sa.Column("mark", sa.BigInteger),
        sa.Column("continuation", sa.Text, nullable=False),
        sa.Column("exported", sa.BigInteger, nullable=False),
        sa.Column("withheld", sa.BigInteger, nullable=False),
        sa.Column("last_lo", sa.BigInteger),
        sa.Column("last_hi", sa.BigInteger),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("generation >= 1", name="lane_generation_positive"),
        sa.CheckConstraint("mark >= 1", name="mark_positive"),
        sa.CheckConstraint("exported >= 0 AND withheld >= 0", name="totals_not_negative"),
        sa.CheckConstraint("(last_lo IS NULL) = (last_hi IS NULL)", name="last_whole"),
        sa.CheckConstraint(
            "last_lo IS NULL OR (mark IS NOT NULL AND last_lo >= 1 AND last_lo <= last_hi AND last_hi <= mark)",
            name="last_below_the_mark",
        ),
    )
    op.create_index("one_lane_of_a_partition", "lane", ["sink_id", "generation", "partition"], unique=True)
    op.create_index("lanes_by_mark", "lane", ["sink_id", "generation", "mark"])


def _intents_and_chunks() -> None:
    op.create_table(
        "intent",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("lane_id", sa.BigInteger, sa.ForeignKey("lane.id"), nullable=False),
        sa.Column("after", sa.BigInteger),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("opened_at", sa.BigInteger, nullable=False),
        sa.Column("closed_at", sa.BigInteger),
        sa.CheckConstraint("until >= 1 AND (after IS NULL OR (after >= 1 AND after < until))", name="intent_not_empty"),
    )
    _index("one_open_intent", "intent", ["lane_id"], "closed_at IS NULL", unique=True)
    op.create_index("one_intent_of_a_bound", "intent", ["lane_id", "until"], unique=True)
    op.create_table(
        "chunk",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("intent_id", sa.BigInteger, sa.ForeignKey("intent.id"), nullable=False),
        sa.Column("lane_id", sa.BigInteger, sa.ForeignKey("lane.id"), nullable=False),
        sa.Column("lo", sa.BigInteger, nullable=False),
        sa.Column("hi", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("expected", sa.BigInteger, nullable=False),
        sa.Column("row_count", sa.BigInteger),
        sa.Column("withheld", sa.BigInteger),
        sa.Column("digest", sa.Text),
        sa.Column("size", sa.BigInteger),
        sa.Column("found", sa.Boolean, nullable=False),
        sa.Column("acked_at", sa.BigInteger),
        sa.CheckConstraint("lo >= 1 AND hi >= lo", name="chunk_not_empty"),
        sa.CheckConstraint("state IN ('planned', 'landed', 'empty')", name="chunk_state_known"),
        sa.CheckConstraint(
            "expected >= 0 AND row_count >= 0 AND withheld >= 0 AND size >= 0", name="counts_not_negative"
        ),
        sa.CheckConstraint("(state = 'planned') = (acked_at IS NULL)", name="acked_has_a_time"),
        sa.CheckConstraint(
            "state <> 'planned' OR (row_count IS NULL AND withheld IS NULL AND digest IS NULL AND size IS NULL)",
            name="planned_knows_no_outcome",
        ),
        sa.CheckConstraint("NOT found OR state = 'landed'", name="found_is_landed"),
        sa.CheckConstraint(
            "state <> 'landed' OR found OR (row_count IS NOT NULL AND withheld IS NOT NULL)",
            name="landed_has_a_count",
        ),
        sa.CheckConstraint("state <> 'empty' OR (row_count = 0 AND withheld IS NOT NULL)", name="empty_has_no_rows"),
    )
    op.create_index("one_chunk_of_a_number", "chunk", ["lane_id", "lo"], unique=True)
    op.create_index("chunks_of_an_intent", "chunk", ["intent_id"])
    _index("planned_chunks", "chunk", ["intent_id"], "state = 'planned'")


def _index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


# Where a comparison with NULL is neither true nor false, it does not refuse: each NULL that must is named.

SINK_WENT_BACK = """NEW.generation < OLD.generation OR NEW.dataset_id <> OLD.dataset_id
  OR (OLD.removed_at IS NOT NULL AND NEW.removed_at IS NULL)
  OR (NEW.generation = OLD.generation
    AND (NEW.planned < OLD.planned OR (NEW.planned IS NULL AND OLD.planned IS NOT NULL)
      OR coalesce(NEW.start, 0) <> coalesce(OLD.start, 0)))"""

MARK_WENT_BACK = """NEW.mark < OLD.mark OR (NEW.mark IS NULL AND OLD.mark IS NOT NULL) OR NEW.version <= OLD.version
  OR NEW.exported < OLD.exported OR NEW.withheld < OLD.withheld
  OR NEW.sink_id <> OLD.sink_id OR NEW.generation <> OLD.generation OR NEW.partition <> OLD.partition"""

PROMISE_CHANGED = """OLD.closed_at IS NOT NULL OR NEW.lane_id <> OLD.lane_id OR NEW.until <> OLD.until
  OR coalesce(NEW.after, 0) <> coalesce(OLD.after, 0) OR NEW.options <> OLD.options"""

CHUNK_CHANGED = """OLD.state <> 'planned' OR NEW.lo <> OLD.lo OR NEW.hi <> OLD.hi OR NEW.lane_id <> OLD.lane_id
  OR NEW.intent_id <> OLD.intent_id OR NEW.expected <> OLD.expected OR NEW.found <> OLD.found"""


def _refuse_illegal_moves() -> None:
    for table, name, condition in (
        ("sink", "a_sink_never_goes_back", SINK_WENT_BACK),
        ("lane", "a_mark_never_goes_back", MARK_WENT_BACK),
        ("intent", "an_intent_is_only_closed", PROMISE_CHANGED),
        ("chunk", "a_chunk_is_only_settled", CHUNK_CHANGED),
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
                f"END $$"
            )
            op.execute(f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
