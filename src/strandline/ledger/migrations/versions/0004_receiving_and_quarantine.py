"""Tokens, senders, received bodies and their batches; rows that a sink refused, and chunks that are split.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _senders()
    _batches()
    _bodies()
    _quarantine()
    _parts_of_chunks()
    _refuse_illegal_moves()


def _senders() -> None:
    op.create_table(
        "api_token",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("datasets", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_index("one_token_of_a_hash", "api_token", ["hash"], unique=True)
    _index("one_token_of_a_name", "api_token", ["name"], "revoked_at IS NULL", unique=True)
    op.create_table(
        "source",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("lake", sa.Text, nullable=False),
        sa.Column("source_dataset", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("table_uuid", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("generation >= 1", name="source_generation_positive"),
    )
    op.create_index("one_source_of_a_dataset", "source", ["dataset_id", "lake", "source_dataset"], unique=True)
    op.create_table(
        "source_lane",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("lake", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("source_dataset", sa.Text, nullable=False),
        sa.Column("partition", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("generation >= 1", name="source_lane_generation_positive"),
    )
    name = ["dataset_id", "lake", "source_dataset", "instance", "generation", "partition"]
    op.create_index("one_lane_of_a_sender", "source_lane", name, unique=True)


def _batches() -> None:
    op.create_table(
        "receive_batch",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("batch_id", sa.Text, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("lease_token", sa.Text),
        sa.Column("lease_until", sa.BigInteger),
        sa.Column("lo", sa.BigInteger),
        sa.Column("hi", sa.BigInteger),
        sa.Column("published_at", sa.BigInteger),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("retry_at", sa.BigInteger),
        sa.CheckConstraint("rows >= 1", name="batch_not_empty"),
        sa.CheckConstraint("(lease_token IS NULL) = (lease_until IS NULL)", name="batch_lease_whole"),
        sa.CheckConstraint(
            "(published_at IS NULL) = (lo IS NULL) AND (lo IS NULL) = (hi IS NULL)", name="published_has_numbers"
        ),
        sa.CheckConstraint("lo IS NULL OR (lo >= 1 AND hi = lo + rows - 1)", name="a_number_for_each_row"),
        sa.CheckConstraint(
            "published_at IS NULL OR (lease_token IS NULL AND reason IS NULL AND retry_at IS NULL)",
            name="published_waits_for_nothing",
        ),
        sa.CheckConstraint("failures >= 0", name="batch_failures_not_negative"),
    )
    op.create_index("one_batch_of_an_id", "receive_batch", ["batch_id"], unique=True)
    _index("unfinished_batches", "receive_batch", ["id"], "published_at IS NULL")


def _bodies() -> None:
    op.create_table(
        "received",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("dataset_id", sa.BigInteger, sa.ForeignKey("dataset.id"), nullable=False),
        sa.Column("lane_id", sa.BigInteger, sa.ForeignKey("source_lane.id")),
        sa.Column("lo", sa.BigInteger),
        sa.Column("hi", sa.BigInteger),
        sa.Column("token_id", sa.BigInteger, sa.ForeignKey("api_token.id")),
        sa.Column("key", sa.Text),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("spool", sa.Text),
        sa.Column("spool_bytes", sa.BigInteger, nullable=False),
        sa.Column("batch", sa.BigInteger, sa.ForeignKey("receive_batch.id")),
        sa.Column("place", sa.BigInteger),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        sa.Column("spool_removed_at", sa.BigInteger),
        sa.CheckConstraint(
            "(lane_id IS NULL) = (lo IS NULL) AND (lane_id IS NULL) = (hi IS NULL) "
            "AND (token_id IS NULL) = (key IS NULL) AND (lane_id IS NULL) = (key IS NOT NULL)",
            name="a_range_or_a_key",
        ),
        sa.CheckConstraint("lo IS NULL OR (lo >= 1 AND hi >= lo)", name="received_not_empty"),
        sa.CheckConstraint("rows >= 0 AND size >= 0 AND spool_bytes >= 0", name="received_not_negative"),
        sa.CheckConstraint("(rows = 0) = (spool IS NULL)", name="rows_are_spooled"),
        sa.CheckConstraint("(batch IS NULL) = (place IS NULL)", name="batched_has_a_place"),
        sa.CheckConstraint("batch IS NULL OR (spool IS NOT NULL AND place >= 0)", name="batched_has_rows"),
        sa.CheckConstraint("spool_removed_at IS NULL OR batch IS NOT NULL", name="removed_after_its_batch"),
    )
    op.create_index("one_body_of_a_number", "received", ["lane_id", "lo"], unique=True)
    op.create_index("one_body_of_a_key", "received", ["dataset_id", "token_id", "key"], unique=True)
    op.create_index("one_body_of_a_file", "received", ["spool"], unique=True)
    _index("one_body_of_a_place", "received", ["batch", "place"], "batch IS NOT NULL", unique=True)
    _index("waiting_bodies", "received", ["dataset_id", "id"], "batch IS NULL AND rows > 0")
    _index("spooled_bodies", "received", ["batch", "spool_bytes"], "spool_removed_at IS NULL AND rows > 0")
    _index("keys_by_age", "received", ["received_at"], "key IS NOT NULL")


def _quarantine() -> None:
    op.create_table(
        "quarantined",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("sink_id", sa.BigInteger, sa.ForeignKey("sink.id"), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("lane_id", sa.BigInteger, sa.ForeignKey("lane.id"), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("object", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("form", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("replay_number", sa.BigInteger),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("seq >= 1 AND size >= 0", name="quarantined_not_negative"),
        sa.CheckConstraint("state IN ('held', 'replaying', 'replayed', 'discarded')", name="quarantined_state_known"),
        sa.CheckConstraint("replay_number >= 1", name="replay_number_positive"),
        sa.CheckConstraint("state IN ('held', 'discarded') OR replay_number IS NOT NULL", name="replayed_has_a_number"),
    )
    op.create_index("one_quarantined_of_a_number", "quarantined", ["lane_id", "seq"], unique=True)
    replay = ["sink_id", "generation", "replay_number"]
    _index("one_row_of_a_replay", "quarantined", replay, "replay_number IS NOT NULL", unique=True)
    op.create_index("quarantined_by_state", "quarantined", ["sink_id", "generation", "state"])


def _parts_of_chunks() -> None:
    op.add_column("chunk", sa.Column("split_from", sa.BigInteger))
    _index("parts_of_a_chunk", "chunk", ["split_from", "lo"], "split_from IS NOT NULL", unique=True)


def _index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


# Where a comparison with NULL is neither true nor false, it does not refuse: each NULL that must is named.

TOKEN_CHANGED = """NEW.name <> OLD.name OR NEW.hash <> OLD.hash
  OR (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS NULL)"""

SOURCE_WENT_BACK = """NEW.generation < OLD.generation OR NEW.dataset_id <> OLD.dataset_id OR NEW.lake <> OLD.lake
  OR NEW.source_dataset <> OLD.source_dataset OR NEW.instance <> OLD.instance OR NEW.table_uuid <> OLD.table_uuid"""

BATCH_CHANGED = """OLD.published_at IS NOT NULL OR NEW.dataset_id <> OLD.dataset_id OR NEW.batch_id <> OLD.batch_id
  OR NEW.rows <> OLD.rows OR NEW.created_at <> OLD.created_at"""

BODY_CHANGED = """NEW.dataset_id <> OLD.dataset_id OR coalesce(NEW.lane_id, 0) <> coalesce(OLD.lane_id, 0)
  OR coalesce(NEW.lo, 0) <> coalesce(OLD.lo, 0) OR coalesce(NEW.hi, 0) <> coalesce(OLD.hi, 0)
  OR coalesce(NEW.token_id, 0) <> coalesce(OLD.token_id, 0) OR coalesce(NEW.key, '') <> coalesce(OLD.key, '')
  OR NEW.rows <> OLD.rows OR NEW.digest <> OLD.digest OR NEW.size <> OLD.size
  OR coalesce(NEW.spool, '') <> coalesce(OLD.spool, '') OR NEW.received_at <> OLD.received_at
  OR (OLD.batch IS NOT NULL AND (NEW.batch IS NULL OR NEW.batch <> OLD.batch OR NEW.place <> OLD.place))
  OR (OLD.spool_removed_at IS NOT NULL AND NEW.spool_removed_at IS NULL)
  OR (OLD.spool_removed_at IS NULL AND NEW.spool_removed_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM receive_batch b WHERE b.id = NEW.batch AND b.published_at IS NOT NULL))"""

# The ranges of a lane are disjoint, so that the last one that begins at or below an end reaches farthest.
RANGE_HELD = """NEW.lane_id IS NOT NULL AND NEW.lo <= coalesce((SELECT r.hi FROM received r
    WHERE r.lane_id = NEW.lane_id AND r.lo <= NEW.hi ORDER BY r.lo DESC LIMIT 1), 0)"""

# Only a key can be forgotten, and only when its rows are in the table and its file is gone.
BODY_NEEDED = "OLD.key IS NULL OR (OLD.rows > 0 AND OLD.spool_removed_at IS NULL)"

QUARANTINED_CHANGED = """NEW.sink_id <> OLD.sink_id OR NEW.generation <> OLD.generation
  OR NEW.lane_id <> OLD.lane_id OR NEW.seq <> OLD.seq OR NEW.object <> OLD.object OR NEW.size <> OLD.size
  OR NEW.options <> OLD.options OR NEW.form <> OLD.form OR NEW.at <> OLD.at
  OR (OLD.replay_number IS NOT NULL AND (NEW.replay_number IS NULL OR NEW.replay_number <> OLD.replay_number))
  OR NOT ((OLD.state = 'held' AND NEW.state IN ('held', 'replaying', 'discarded'))
    OR (OLD.state = 'replaying' AND NEW.state IN ('replaying', 'replayed', 'held')))"""

CHUNK_CHANGED = """NEW.split_from <> OLD.split_from OR (NEW.split_from IS NULL) <> (OLD.split_from IS NULL)"""


def _refuse_illegal_moves() -> None:
    for table, move, name, condition in (
        ("api_token", "UPDATE", "a_token_is_only_revoked", TOKEN_CHANGED),
        ("source", "UPDATE", "a_source_never_goes_back", SOURCE_WENT_BACK),
        ("source_lane", "UPDATE", "a_senders_lane_never_changes", "1 = 1"),
        ("receive_batch", "UPDATE", "a_batch_is_only_published", BATCH_CHANGED),
        ("receive_batch", "DELETE", "a_batch_stays", "1 = 1"),
        ("received", "INSERT", "ranges_of_a_lane_never_overlap", RANGE_HELD),
        ("received", "UPDATE", "a_body_never_changes", BODY_CHANGED),
        ("received", "DELETE", "a_body_that_is_needed_stays", BODY_NEEDED),
        ("quarantined", "UPDATE", "a_quarantined_row_goes_its_way", QUARANTINED_CHANGED),
        ("quarantined", "DELETE", "a_quarantined_row_stays", "1 = 1"),
        ("chunk", "UPDATE", "a_part_stays_a_part", CHUNK_CHANGED),
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
