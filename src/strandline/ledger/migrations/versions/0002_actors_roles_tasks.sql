ALTER TABLE audit ADD COLUMN actor TEXT;

ALTER TABLE audit ADD COLUMN "trigger" TEXT
  CONSTRAINT audit_trigger_known CHECK ("trigger" IN ('command', 'api', 'page', 'schedule', 'daemon', 'library'))
  CONSTRAINT audit_actor_has_a_trigger CHECK ((actor IS NULL) = ("trigger" IS NULL));

UPDATE audit SET event = CASE event
  WHEN 'ledger_rebuilt' THEN 'ledger.rebuilt'
  WHEN 'ledger_opened' THEN 'ledger.resynced'
  WHEN 'witness_replaced' THEN 'ledger.witness_replaced'
  WHEN 'dataset_adopted' THEN 'dataset.adopted'
  WHEN 'dataset_altered' THEN 'dataset.altered'
  WHEN 'dataset_dropped' THEN 'dataset.dropped'
  WHEN 'dataset_replaced' THEN 'dataset.replaced'
  WHEN 'dataset_opened' THEN 'dataset.resynced'
  WHEN 'rollback_not_known' THEN 'dataset.rollback_not_known'
  WHEN 'table_accepted' THEN 'dataset.table_accepted'
  WHEN 'block_voided' THEN 'ingest.block_voided'
  WHEN 'stray_branch_removed' THEN 'ingest.stray_branch_removed'
  WHEN 'sink_added' THEN 'sink.added'
  WHEN 'sink_paused' THEN 'sink.paused'
  WHEN 'sink_recovered' THEN 'sink.recovered'
  WHEN 'sink_removed' THEN 'sink.removed'
  WHEN 'sink_reset' THEN 'sink.reset'
  WHEN 'sink_resumed' THEN 'sink.resumed'
  WHEN 'sink_stopped' THEN 'sink.stopped'
  WHEN 'sink_updated' THEN 'sink.updated'
  WHEN 'rows_lost' THEN 'sink.rows_lost'
  WHEN 'quarantine_discarded' THEN 'quarantine.discarded'
  WHEN 'quarantine_replayed' THEN 'quarantine.replayed'
  WHEN 'token_created' THEN 'token.created'
  WHEN 'token_revoked' THEN 'token.revoked'
  WHEN 'claim_released' THEN 'token.claim_released'
  WHEN 'received_accepted' THEN 'receive.accepted'
  WHEN 'bodies_discarded' THEN 'receive.bodies_discarded'
  WHEN 'bodies_found' THEN 'receive.bodies_found'
  WHEN 'bodies_replayed' THEN 'receive.bodies_replayed'
  WHEN 'spool_cleared' THEN 'receive.spool_cleared'
  WHEN 'spool_files_left' THEN 'receive.spool_files_left'
  WHEN 'spool_files_set_aside' THEN 'receive.spool_files_set_aside'
  WHEN 'clock_jumped' THEN 'maintain.clock_jumped'
  WHEN 'compacted' THEN 'maintain.compacted'
  WHEN 'expired' THEN 'maintain.expired'
  WHEN 'purged' THEN 'maintain.purged'
  WHEN 'purge_settled' THEN 'maintain.purge_settled'
  WHEN 'retained' THEN 'maintain.retained'
  WHEN 'retention_held' THEN 'maintain.retention_held'
  WHEN 'retention_released' THEN 'maintain.retention_released'
  WHEN 'maintenance_skipped' THEN 'maintain.run_skipped'
  WHEN 'cap_hit' THEN 'reconcile.cap_hit'
  WHEN 'entries_dropped' THEN 'reconcile.entries_dropped'
  WHEN 'files_deleted' THEN 'reconcile.files_deleted'
  WHEN 'files_purged' THEN 'reconcile.files_purged'
  WHEN 'files_quarantined' THEN 'reconcile.files_quarantined'
  WHEN 'files_restored' THEN 'reconcile.files_restored'
  WHEN 'file_released' THEN 'reconcile.file_released'
  WHEN 'run_aborted' THEN 'reconcile.run_aborted'
  WHEN 'run_completed' THEN 'reconcile.run_completed'
  WHEN 'run_settled' THEN 'reconcile.run_settled'
  WHEN 'run_started' THEN 'reconcile.run_started'
  WHEN 'schedule_seen' THEN 'schedule.followed'
  ELSE event END;

CREATE INDEX audit_by_event ON audit (event, id);

CREATE INDEX audit_by_actor ON audit (actor, id);

CREATE INDEX audit_by_trigger ON audit ("trigger", id);

CREATE TRIGGER an_event_never_changes BEFORE UPDATE ON audit
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'an_event_never_changes'); END;

CREATE TRIGGER an_event_stays BEFORE DELETE ON audit
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'an_event_stays'); END;

ALTER TABLE maintenance_run ADD COLUMN actor TEXT;

ALTER TABLE maintenance_run ADD COLUMN "trigger" TEXT
  CONSTRAINT maintenance_trigger_known
    CHECK ("trigger" IN ('command', 'api', 'page', 'schedule', 'daemon', 'library'))
  CONSTRAINT maintenance_actor_has_a_trigger CHECK ((actor IS NULL) = ("trigger" IS NULL));

CREATE TRIGGER maintenance_keeps_its_actor BEFORE UPDATE ON maintenance_run
WHEN coalesce(NEW.actor, '') <> coalesce(OLD.actor, '') OR coalesce(NEW."trigger", '') <> coalesce(OLD."trigger", '')
BEGIN SELECT RAISE(ABORT, 'maintenance_keeps_its_actor'); END;

ALTER TABLE reconcile_run ADD COLUMN actor TEXT;

ALTER TABLE reconcile_run ADD COLUMN "trigger" TEXT
  CONSTRAINT reconcile_trigger_known CHECK ("trigger" IN ('command', 'api', 'page', 'schedule', 'daemon', 'library'))
  CONSTRAINT reconcile_actor_has_a_trigger CHECK ((actor IS NULL) = ("trigger" IS NULL));

CREATE TRIGGER reconcile_keeps_its_actor BEFORE UPDATE ON reconcile_run
WHEN coalesce(NEW.actor, '') <> coalesce(OLD.actor, '') OR coalesce(NEW."trigger", '') <> coalesce(OLD."trigger", '')
BEGIN SELECT RAISE(ABORT, 'reconcile_keeps_its_actor'); END;

ALTER TABLE api_token ADD COLUMN role TEXT DEFAULT 'write' NOT NULL
  CONSTRAINT role_known CHECK (role IN ('read', 'write', 'replicate', 'admin'));

ALTER TABLE api_token ADD COLUMN expires_at BIGINT;

CREATE TRIGGER a_token_keeps_its_role BEFORE UPDATE ON api_token
WHEN NEW.role <> OLD.role OR coalesce(NEW.expires_at, 0) <> coalesce(OLD.expires_at, 0)
    OR coalesce(NEW.datasets, '') <> coalesce(OLD.datasets, '')
BEGIN SELECT RAISE(ABORT, 'a_token_keeps_its_role'); END;

CREATE TABLE web_session (
  id_hash TEXT NOT NULL CONSTRAINT a_session_is_stored_as_a_hash CHECK (length(id_hash) = 64),
  token_id BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  PRIMARY KEY (id_hash),
  CONSTRAINT a_session_is_short CHECK (expires_at >= created_at),
  FOREIGN KEY (token_id) REFERENCES api_token (id)
);

CREATE INDEX sessions_of_a_token ON web_session (token_id, created_at);

CREATE INDEX sessions_by_expiry ON web_session (expires_at);

CREATE TRIGGER a_session_never_changes BEFORE UPDATE ON web_session
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_session_never_changes'); END;

CREATE TABLE task (
  id INTEGER NOT NULL,
  kind TEXT NOT NULL,
  subject TEXT NOT NULL,
  node TEXT NOT NULL,
  actor TEXT NOT NULL,
  "trigger" TEXT NOT NULL,
  started_at BIGINT NOT NULL,
  lease_token TEXT,
  lease_until BIGINT,
  stop_asked_at BIGINT,
  ended_at BIGINT,
  outcome TEXT,
  result TEXT,
  error TEXT,
  PRIMARY KEY (id),
  CONSTRAINT task_trigger_known CHECK ("trigger" IN ('command', 'api', 'page', 'schedule', 'daemon', 'library')),
  CONSTRAINT task_outcome_known CHECK (outcome IN ('done', 'refused', 'failed', 'cancelled', 'died')),
  CONSTRAINT task_ends_with_an_outcome CHECK ((ended_at IS NULL) = (outcome IS NULL)),
  CONSTRAINT task_lease_whole CHECK ((lease_token IS NULL) = (lease_until IS NULL)),
  CONSTRAINT task_under_way_has_a_lease CHECK ((ended_at IS NULL) = (lease_token IS NOT NULL)),
  CONSTRAINT task_result_if_done CHECK (result IS NULL OR outcome = 'done'),
  CONSTRAINT task_error_if_not_done CHECK (error IS NULL OR outcome <> 'done'),
  CONSTRAINT failed_task_has_an_error CHECK (outcome IS NULL OR outcome NOT IN ('refused', 'failed') OR error IS NOT NULL)
);

CREATE UNIQUE INDEX one_task_of_a_subject ON task (kind, subject) WHERE ended_at IS NULL;

CREATE INDEX tasks_by_subject ON task (kind, subject, id);

CREATE TRIGGER a_task_is_only_ended BEFORE UPDATE ON task
WHEN OLD.ended_at IS NOT NULL OR NEW.kind <> OLD.kind OR NEW.subject <> OLD.subject OR NEW.node <> OLD.node
    OR NEW.actor <> OLD.actor OR NEW."trigger" <> OLD."trigger" OR NEW.started_at <> OLD.started_at
    OR (NEW.ended_at IS NULL AND NEW.lease_token <> OLD.lease_token)
    OR (OLD.stop_asked_at IS NOT NULL AND (NEW.stop_asked_at IS NULL OR NEW.stop_asked_at <> OLD.stop_asked_at))
BEGIN SELECT RAISE(ABORT, 'a_task_is_only_ended'); END;

CREATE TRIGGER a_task_under_way_stays BEFORE DELETE ON task
WHEN OLD.ended_at IS NULL
BEGIN SELECT RAISE(ABORT, 'a_task_under_way_stays'); END;
