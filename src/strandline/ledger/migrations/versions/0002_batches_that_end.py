"""Batches of received bodies can end without being published: a batch that cannot be ingested is divided, a body
that cannot be ingested is set aside, and bodies of a dropped dataset can be discarded."""

from alembic import op

from strandline.ledger.migrations.dialect import for_postgres

revision = "0002"
down_revision = "0001"

# A comparison with NULL is neither true nor false, and then the trigger refuses nothing: so each NULL is tested.

# A block that is not abandoned may still bring the batch into the table, so the batch must not end before it is.
# Bodies of a dropped dataset can be discarded whatever the state of their blocks: they go nowhere else.
BATCH_CHANGED = """OLD.published_at IS NOT NULL OR NEW.dataset_id <> OLD.dataset_id OR NEW.batch_id <> OLD.batch_id
  OR NEW.rows <> OLD.rows OR NEW.created_at <> OLD.created_at
  OR (NEW.ending IS NULL) <> (NEW.ended_at IS NULL)
  OR (NEW.ending IS NOT NULL AND NEW.ending NOT IN ('divided', 'set_aside', 'replayed', 'discarded'))
  OR (NEW.ending IS NOT NULL
    AND (NEW.published_at IS NOT NULL OR NEW.lease_token IS NOT NULL OR NEW.retry_at IS NOT NULL))
  OR (NEW.ending = 'set_aside' AND NEW.reason IS NULL)
  OR (OLD.failed_from IS NOT NULL AND coalesce(NEW.failed_from, 0) <> OLD.failed_from)
  OR (OLD.ending IS NOT NULL
    AND NOT (OLD.ending = 'set_aside' AND coalesce(NEW.ending, '') IN ('replayed', 'discarded')))
  OR (OLD.ending IS NULL AND NEW.ending = 'replayed')
  OR (OLD.ending IS NULL AND NEW.ending = 'discarded'
    AND NOT EXISTS (SELECT 1 FROM dataset d WHERE d.id = NEW.dataset_id AND d.dropped_at IS NOT NULL))
  OR (OLD.ending IS NULL AND NEW.ending IN ('divided', 'set_aside') AND EXISTS (SELECT 1 FROM block b
    WHERE b.dataset_id = NEW.dataset_id AND b.batch_id = NEW.batch_id AND b.state <> 'abandoned'))"""

# A body leaves a batch only for a part of it. Its spool file is removed only when its rows are published or discarded.
BODY_CHANGED = """NEW.dataset_id <> OLD.dataset_id OR coalesce(NEW.lane_id, 0) <> coalesce(OLD.lane_id, 0)
  OR coalesce(NEW.lo, 0) <> coalesce(OLD.lo, 0) OR coalesce(NEW.hi, 0) <> coalesce(OLD.hi, 0)
  OR coalesce(NEW.token_id, 0) <> coalesce(OLD.token_id, 0) OR coalesce(NEW.key, '') <> coalesce(OLD.key, '')
  OR NEW.rows <> OLD.rows OR NEW.digest <> OLD.digest OR NEW.size <> OLD.size
  OR coalesce(NEW.spool, '') <> coalesce(OLD.spool, '') OR NEW.received_at <> OLD.received_at
  OR (OLD.batch IS NOT NULL AND NEW.batch IS NULL)
  OR (OLD.batch = NEW.batch AND NEW.place <> OLD.place)
  OR (OLD.batch <> NEW.batch AND NOT EXISTS (SELECT 1 FROM receive_batch a, receive_batch b
    WHERE a.id = OLD.batch AND a.ending IN ('divided', 'replayed')
    AND b.id = NEW.batch AND b.published_at IS NULL AND b.ended_at IS NULL))
  OR (OLD.spool_removed_at IS NOT NULL AND NEW.spool_removed_at IS NULL)
  OR (OLD.spool_removed_at IS NULL AND NEW.spool_removed_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM receive_batch b
      WHERE b.id = NEW.batch AND (b.published_at IS NOT NULL OR b.ending = 'discarded')))"""

# A process that held the batch when it ended may still try to ingest it, but its bodies are in other batches by now.
BATCH_ENDED = """NEW.state = 'reserved' AND EXISTS (SELECT 1 FROM receive_batch b
    WHERE b.batch_id = NEW.batch_id AND b.dataset_id = NEW.dataset_id AND b.ended_at IS NOT NULL)"""


def upgrade() -> None:
    for column in ("failed_from BIGINT", "ended_at BIGINT", "ending TEXT"):
        op.execute(f"ALTER TABLE receive_batch ADD COLUMN {column}")
    op.execute("DROP INDEX unfinished_batches")
    op.execute("CREATE INDEX unfinished_batches ON receive_batch (id) WHERE published_at IS NULL AND ended_at IS NULL")
    op.execute("CREATE INDEX batches_set_aside ON receive_batch (id) WHERE ending = 'set_aside'")
    for name in ("a_batch_is_only_published", "a_body_never_changes"):
        op.execute(f"DROP TRIGGER {name}" if _is_sqlite() else f"DROP FUNCTION {name}() CASCADE")
    _refuse("a_batch_is_only_published", "UPDATE ON receive_batch", BATCH_CHANGED)
    _refuse("a_body_never_changes", "UPDATE ON received", BODY_CHANGED)
    _refuse("an_ended_batch_gets_no_block", "INSERT ON block", BATCH_ENDED)


def _refuse(name: str, move: str, condition: str) -> None:
    trigger = f"CREATE TRIGGER {name} BEFORE {move}\nWHEN {condition}\nBEGIN SELECT RAISE(ABORT, '{name}'); END;"
    for statement in [trigger] if _is_sqlite() else for_postgres(trigger):
        op.get_bind().exec_driver_sql(statement)


def _is_sqlite() -> bool:
    return op.get_context().dialect.name == "sqlite"
