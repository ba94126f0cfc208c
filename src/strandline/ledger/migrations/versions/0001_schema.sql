CREATE TABLE sequence (
  id INTEGER NOT NULL CONSTRAINT one_sequence CHECK (id = 1),
  lake TEXT NOT NULL,
  last BIGINT NOT NULL CONSTRAINT last_not_negative CHECK (last >= 0),
  epoch BIGINT NOT NULL CONSTRAINT epoch_positive CHECK (epoch >= 1),
  created_at BIGINT NOT NULL,
  PRIMARY KEY (id)
);

CREATE TRIGGER the_counter_never_goes_back BEFORE UPDATE ON sequence
WHEN NEW.last < OLD.last OR NEW.epoch < OLD.epoch OR NEW.lake <> OLD.lake
BEGIN SELECT RAISE(ABORT, 'the_counter_never_goes_back'); END;

CREATE TABLE dataset (
  id INTEGER NOT NULL,
  name TEXT NOT NULL,
  table_uuid TEXT NOT NULL,
  deliver_by TEXT NOT NULL,
  adopted BOOLEAN NOT NULL,
  history TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  dropped_at BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT history_known CHECK (history IN ('deliver', 'skip'))
);

CREATE UNIQUE INDEX one_dataset_of_a_name ON dataset (name) WHERE dropped_at IS NULL;

CREATE TABLE block (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  lo BIGINT NOT NULL,
  hi BIGINT NOT NULL,
  kind TEXT NOT NULL,
  batch_id TEXT NOT NULL,
  digest TEXT,
  state TEXT NOT NULL,
  fence BIGINT NOT NULL,
  lease_until BIGINT,
  snapshot_id BIGINT,
  row_count BIGINT,
  reason TEXT,
  reserved_at BIGINT NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT kind_known CHECK (kind IN ('batch', 'adopted', 'recovered')),
  CONSTRAINT range_not_empty CHECK (lo >= 1 AND hi >= lo),
  CONSTRAINT state_known CHECK (state IN ('reserved', 'staged', 'published', 'abandoned')),
  CONSTRAINT reserved_has_a_lease CHECK ((state = 'reserved') = (lease_until IS NOT NULL)),
  CONSTRAINT staged_has_a_snapshot CHECK (state <> 'staged' OR snapshot_id IS NOT NULL),
  CONSTRAINT snapshot_only_when_staged CHECK (state IN ('staged', 'published') OR snapshot_id IS NULL),
  CONSTRAINT abandoned_has_a_reason CHECK ((state = 'abandoned') = (reason IS NOT NULL)),
  CONSTRAINT published_has_a_count CHECK ((state = 'published' AND kind <> 'recovered') = (row_count IS NOT NULL)),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE UNIQUE INDEX one_block_of_a_batch ON block (dataset_id, batch_id) WHERE state <> 'abandoned';

CREATE UNIQUE INDEX one_block_of_a_number ON block (lo) WHERE kind <> 'recovered';

CREATE INDEX open_blocks ON block (dataset_id, lo) WHERE state IN ('reserved', 'staged');

CREATE INDEX published_blocks ON block (dataset_id, hi) WHERE state = 'published';

CREATE TRIGGER a_block_moves_forward_only BEFORE UPDATE ON block
WHEN NEW.lo <> OLD.lo OR NEW.hi <> OLD.hi OR NEW.dataset_id <> OLD.dataset_id OR NEW.fence < OLD.fence
    OR NOT (NEW.state = OLD.state
      OR (OLD.state = 'reserved' AND NEW.state IN ('staged', 'published', 'abandoned'))
      OR (OLD.state = 'staged' AND NEW.state = 'published')
      OR (OLD.state = 'staged' AND NEW.state = 'abandoned' AND NEW.reason LIKE 'voided:%'))
BEGIN SELECT RAISE(ABORT, 'a_block_moves_forward_only'); END;

CREATE TABLE input_file (
  block_id BIGINT NOT NULL,
  path TEXT NOT NULL,
  PRIMARY KEY (block_id, path),
  FOREIGN KEY (block_id) REFERENCES block (id)
);

CREATE TABLE audit (
  id INTEGER NOT NULL,
  at BIGINT NOT NULL,
  event TEXT NOT NULL,
  detail TEXT NOT NULL,
  PRIMARY KEY (id)
);

CREATE TABLE table_count (
  dataset_id BIGINT NOT NULL,
  snapshot_id BIGINT,
  unnumbered BIGINT NOT NULL,
  foreign_rows BIGINT NOT NULL,
  counted_at BIGINT NOT NULL,
  twice BIGINT,
  twice_first BIGINT,
  foreign_from BIGINT,
  PRIMARY KEY (dataset_id),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TABLE sink (
  id INTEGER NOT NULL,
  instance TEXT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  dataset_id BIGINT NOT NULL,
  generation BIGINT NOT NULL,
  options TEXT NOT NULL,
  destination TEXT NOT NULL,
  start BIGINT,
  planned BIGINT,
  state TEXT NOT NULL,
  reason TEXT,
  failures BIGINT NOT NULL,
  retry_at BIGINT,
  lease_token TEXT,
  lease_until BIGINT,
  created_at BIGINT NOT NULL,
  removed_at BIGINT,
  peer TEXT CONSTRAINT peer_known CHECK (peer IN ('receiver', 'other')),
  failing_since BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT generation_positive CHECK (generation >= 1),
  CONSTRAINT start_positive CHECK (start >= 1),
  CONSTRAINT planned_positive CHECK (planned >= 1),
  CONSTRAINT planned_from_the_start CHECK (start IS NULL OR (planned IS NOT NULL AND planned >= start)),
  CONSTRAINT sink_state_known CHECK (state IN ('active', 'paused', 'stopped')),
  CONSTRAINT stopped_has_a_reason CHECK (state <> 'stopped' OR reason IS NOT NULL),
  CONSTRAINT failures_not_negative CHECK (failures >= 0),
  CONSTRAINT lease_whole CHECK ((lease_token IS NULL) = (lease_until IS NULL)),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE UNIQUE INDEX one_sink_of_a_name ON sink (name) WHERE removed_at IS NULL;

CREATE UNIQUE INDEX one_sink_of_a_destination ON sink (destination) WHERE removed_at IS NULL;

CREATE TRIGGER a_sink_never_goes_back BEFORE UPDATE ON sink
WHEN NEW.generation < OLD.generation OR NEW.dataset_id <> OLD.dataset_id
    OR (OLD.removed_at IS NOT NULL AND NEW.removed_at IS NULL)
    OR (NEW.generation = OLD.generation
      AND (NEW.planned < OLD.planned OR (NEW.planned IS NULL AND OLD.planned IS NOT NULL)
        OR coalesce(NEW.start, 0) <> coalesce(OLD.start, 0)))
BEGIN SELECT RAISE(ABORT, 'a_sink_never_goes_back'); END;

CREATE TABLE lane (
  id INTEGER NOT NULL,
  sink_id BIGINT NOT NULL,
  generation BIGINT NOT NULL,
  partition TEXT NOT NULL,
  mark BIGINT,
  continuation TEXT NOT NULL,
  exported BIGINT NOT NULL,
  withheld BIGINT NOT NULL,
  last_lo BIGINT,
  last_hi BIGINT,
  version BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  partition_hash TEXT DEFAULT '' NOT NULL,
  builds_on BIGINT CONSTRAINT builds_on_positive CHECK (builds_on >= 1),
  PRIMARY KEY (id),
  CONSTRAINT lane_generation_positive CHECK (generation >= 1),
  CONSTRAINT mark_positive CHECK (mark >= 1),
  CONSTRAINT totals_not_negative CHECK (exported >= 0 AND withheld >= 0),
  CONSTRAINT last_whole CHECK ((last_lo IS NULL) = (last_hi IS NULL)),
  CONSTRAINT last_below_the_mark CHECK (last_lo IS NULL OR (mark IS NOT NULL AND last_lo >= 1 AND last_lo <= last_hi AND last_hi <= mark)),
  FOREIGN KEY (sink_id) REFERENCES sink (id)
);

CREATE INDEX lanes_by_mark ON lane (sink_id, generation, mark);

CREATE UNIQUE INDEX one_lane_of_a_partition ON lane (sink_id, generation, partition_hash);

CREATE TRIGGER a_mark_never_goes_back BEFORE UPDATE ON lane
WHEN NEW.mark < OLD.mark OR (NEW.mark IS NULL AND OLD.mark IS NOT NULL) OR NEW.version <= OLD.version
    OR NEW.exported < OLD.exported OR NEW.withheld < OLD.withheld
    OR NEW.sink_id <> OLD.sink_id OR NEW.generation <> OLD.generation OR NEW.partition <> OLD.partition
BEGIN SELECT RAISE(ABORT, 'a_mark_never_goes_back'); END;

CREATE TRIGGER a_lane_has_its_hash BEFORE INSERT ON lane
WHEN length(NEW.partition_hash) <> 64
BEGIN SELECT RAISE(ABORT, 'a_lane_has_its_hash'); END;

CREATE TRIGGER a_lane_keeps_its_hash BEFORE UPDATE ON lane
WHEN NEW.partition_hash <> OLD.partition_hash
BEGIN SELECT RAISE(ABORT, 'a_lane_keeps_its_hash'); END;

CREATE TABLE intent (
  id INTEGER NOT NULL,
  lane_id BIGINT NOT NULL,
  "after" BIGINT,
  until BIGINT NOT NULL,
  options TEXT NOT NULL,
  opened_at BIGINT NOT NULL,
  closed_at BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT intent_not_empty CHECK (until >= 1 AND (after IS NULL OR (after >= 1 AND after < until))),
  FOREIGN KEY (lane_id) REFERENCES lane (id)
);

CREATE UNIQUE INDEX one_open_intent ON intent (lane_id) WHERE closed_at IS NULL;

CREATE UNIQUE INDEX one_intent_of_a_bound ON intent (lane_id, until);

CREATE TRIGGER an_intent_is_only_closed BEFORE UPDATE ON intent
WHEN OLD.closed_at IS NOT NULL OR NEW.lane_id <> OLD.lane_id OR NEW.until <> OLD.until
    OR coalesce(NEW.after, 0) <> coalesce(OLD.after, 0) OR NEW.options <> OLD.options
BEGIN SELECT RAISE(ABORT, 'an_intent_is_only_closed'); END;

CREATE TABLE chunk (
  id INTEGER NOT NULL,
  intent_id BIGINT NOT NULL,
  lane_id BIGINT NOT NULL,
  lo BIGINT NOT NULL,
  hi BIGINT NOT NULL,
  state TEXT NOT NULL,
  expected BIGINT NOT NULL,
  row_count BIGINT,
  withheld BIGINT,
  digest TEXT,
  size BIGINT,
  found BOOLEAN NOT NULL,
  acked_at BIGINT,
  split_from BIGINT,
  offered BOOLEAN NOT NULL DEFAULT TRUE,
  PRIMARY KEY (id),
  CONSTRAINT chunk_not_empty CHECK (lo >= 1 AND hi >= lo),
  CONSTRAINT chunk_state_known CHECK (state IN ('planned', 'landed', 'empty')),
  CONSTRAINT counts_not_negative CHECK (expected >= 0 AND row_count >= 0 AND withheld >= 0 AND size >= 0),
  CONSTRAINT acked_has_a_time CHECK ((state = 'planned') = (acked_at IS NULL)),
  CONSTRAINT planned_knows_no_outcome CHECK (state <> 'planned' OR (row_count IS NULL AND withheld IS NULL AND digest IS NULL AND size IS NULL)),
  CONSTRAINT found_is_landed CHECK (NOT found OR state = 'landed'),
  CONSTRAINT landed_has_a_count CHECK (state <> 'landed' OR found OR (row_count IS NOT NULL AND withheld IS NOT NULL)),
  CONSTRAINT empty_has_no_rows CHECK (state <> 'empty' OR (row_count = 0 AND withheld IS NOT NULL)),
  FOREIGN KEY (intent_id) REFERENCES intent (id),
  FOREIGN KEY (lane_id) REFERENCES lane (id)
);

CREATE UNIQUE INDEX one_chunk_of_a_number ON chunk (lane_id, lo);

CREATE INDEX chunks_of_an_intent ON chunk (intent_id);

CREATE INDEX planned_chunks ON chunk (intent_id) WHERE state = 'planned';

CREATE UNIQUE INDEX parts_of_a_chunk ON chunk (split_from, lo) WHERE split_from IS NOT NULL;

CREATE TRIGGER a_chunk_is_only_settled BEFORE UPDATE ON chunk
WHEN OLD.state <> 'planned' OR NEW.lo <> OLD.lo OR NEW.hi <> OLD.hi OR NEW.lane_id <> OLD.lane_id
    OR NEW.intent_id <> OLD.intent_id OR NEW.expected <> OLD.expected OR NEW.found <> OLD.found
BEGIN SELECT RAISE(ABORT, 'a_chunk_is_only_settled'); END;

CREATE TRIGGER a_part_stays_a_part BEFORE UPDATE ON chunk
WHEN NEW.split_from <> OLD.split_from OR (NEW.split_from IS NULL) <> (OLD.split_from IS NULL)
BEGIN SELECT RAISE(ABORT, 'a_part_stays_a_part'); END;

CREATE TABLE api_token (
  id INTEGER NOT NULL,
  name TEXT NOT NULL,
  hash TEXT NOT NULL,
  datasets TEXT,
  created_at BIGINT NOT NULL,
  revoked_at BIGINT,
  owner_id BIGINT,
  PRIMARY KEY (id)
);

CREATE UNIQUE INDEX one_token_of_a_hash ON api_token (hash);

CREATE UNIQUE INDEX one_token_of_a_name ON api_token (name) WHERE revoked_at IS NULL;

CREATE TRIGGER a_token_is_only_revoked BEFORE UPDATE ON api_token
WHEN NEW.name <> OLD.name OR NEW.hash <> OLD.hash
    OR (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS NULL)
BEGIN SELECT RAISE(ABORT, 'a_token_is_only_revoked'); END;

CREATE TRIGGER a_token_keeps_its_owner BEFORE UPDATE ON api_token
WHEN coalesce(NEW.owner_id, 0) <> coalesce(OLD.owner_id, 0)
BEGIN SELECT RAISE(ABORT, 'a_token_keeps_its_owner'); END;

CREATE TABLE source (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  lake TEXT NOT NULL,
  source_dataset TEXT NOT NULL,
  instance TEXT NOT NULL,
  table_uuid TEXT NOT NULL,
  generation BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  owner_id BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT source_generation_positive CHECK (generation >= 1),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE UNIQUE INDEX one_source_of_a_dataset ON source (dataset_id, lake, source_dataset);

CREATE TRIGGER a_source_never_goes_back BEFORE UPDATE ON source
WHEN NEW.generation < OLD.generation OR NEW.dataset_id <> OLD.dataset_id OR NEW.lake <> OLD.lake
    OR NEW.source_dataset <> OLD.source_dataset OR NEW.instance <> OLD.instance OR NEW.table_uuid <> OLD.table_uuid
BEGIN SELECT RAISE(ABORT, 'a_source_never_goes_back'); END;

CREATE TRIGGER a_source_keeps_its_owner BEFORE UPDATE ON source
WHEN OLD.owner_id IS NOT NULL AND (NEW.owner_id IS NULL OR NEW.owner_id <> OLD.owner_id)
BEGIN SELECT RAISE(ABORT, 'a_source_keeps_its_owner'); END;

CREATE TRIGGER a_generation_is_one_step BEFORE UPDATE ON source
WHEN NEW.generation > OLD.generation + 1
BEGIN SELECT RAISE(ABORT, 'a_generation_is_one_step'); END;

CREATE TABLE source_lane (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  lake TEXT NOT NULL,
  instance TEXT NOT NULL,
  generation BIGINT NOT NULL,
  source_dataset TEXT NOT NULL,
  partition TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  partition_hash TEXT DEFAULT '' NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT source_lane_generation_positive CHECK (generation >= 1),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE UNIQUE INDEX one_lane_of_a_sender ON source_lane (dataset_id, lake, source_dataset, instance, generation, partition_hash);

CREATE TRIGGER a_senders_lane_never_changes BEFORE UPDATE ON source_lane
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_senders_lane_never_changes'); END;

CREATE TRIGGER a_source_lane_has_its_hash BEFORE INSERT ON source_lane
WHEN length(NEW.partition_hash) <> 64
BEGIN SELECT RAISE(ABORT, 'a_source_lane_has_its_hash'); END;

CREATE TRIGGER a_source_lane_keeps_its_hash BEFORE UPDATE ON source_lane
WHEN NEW.partition_hash <> OLD.partition_hash
BEGIN SELECT RAISE(ABORT, 'a_source_lane_keeps_its_hash'); END;

CREATE TABLE receive_batch (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  batch_id TEXT NOT NULL,
  rows BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  lease_token TEXT,
  lease_until BIGINT,
  lo BIGINT,
  hi BIGINT,
  published_at BIGINT,
  failures BIGINT NOT NULL,
  reason TEXT,
  retry_at BIGINT,
  failed_from BIGINT,
  ended_at BIGINT,
  ending TEXT,
  PRIMARY KEY (id),
  CONSTRAINT batch_not_empty CHECK (rows >= 1),
  CONSTRAINT batch_lease_whole CHECK ((lease_token IS NULL) = (lease_until IS NULL)),
  CONSTRAINT published_has_numbers CHECK ((published_at IS NULL) = (lo IS NULL) AND (lo IS NULL) = (hi IS NULL)),
  CONSTRAINT a_number_for_each_row CHECK (lo IS NULL OR (lo >= 1 AND hi = lo + rows - 1)),
  CONSTRAINT published_waits_for_nothing CHECK (published_at IS NULL OR (lease_token IS NULL AND reason IS NULL AND retry_at IS NULL)),
  CONSTRAINT batch_failures_not_negative CHECK (failures >= 0),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE UNIQUE INDEX one_batch_of_an_id ON receive_batch (batch_id);

CREATE INDEX unfinished_batches ON receive_batch (id) WHERE published_at IS NULL AND ended_at IS NULL;

CREATE INDEX batches_set_aside ON receive_batch (id) WHERE ending = 'set_aside';

CREATE TRIGGER a_batch_is_only_published BEFORE UPDATE ON receive_batch
WHEN OLD.published_at IS NOT NULL OR NEW.dataset_id <> OLD.dataset_id OR NEW.batch_id <> OLD.batch_id
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
    WHERE b.dataset_id = NEW.dataset_id AND b.batch_id = NEW.batch_id AND b.state <> 'abandoned'))
BEGIN SELECT RAISE(ABORT, 'a_batch_is_only_published'); END;

CREATE TRIGGER a_batch_stays BEFORE DELETE ON receive_batch
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_batch_stays'); END;

CREATE TABLE received (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  lane_id BIGINT,
  lo BIGINT,
  hi BIGINT,
  token_id BIGINT,
  "key" TEXT,
  rows BIGINT NOT NULL,
  digest TEXT NOT NULL,
  size BIGINT NOT NULL,
  spool TEXT,
  spool_bytes BIGINT NOT NULL,
  batch BIGINT,
  place BIGINT,
  received_at BIGINT NOT NULL,
  spool_removed_at BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT a_range_or_a_key CHECK ((lane_id IS NULL) = (lo IS NULL) AND (lane_id IS NULL) = (hi IS NULL) AND (token_id IS NULL) = (key IS NULL) AND (lane_id IS NULL) = (key IS NOT NULL)),
  CONSTRAINT received_not_empty CHECK (lo IS NULL OR (lo >= 1 AND hi >= lo)),
  CONSTRAINT received_not_negative CHECK (rows >= 0 AND size >= 0 AND spool_bytes >= 0),
  CONSTRAINT rows_are_spooled CHECK ((rows = 0) = (spool IS NULL)),
  CONSTRAINT batched_has_a_place CHECK ((batch IS NULL) = (place IS NULL)),
  CONSTRAINT batched_has_rows CHECK (batch IS NULL OR (spool IS NOT NULL AND place >= 0)),
  CONSTRAINT removed_after_its_batch CHECK (spool_removed_at IS NULL OR batch IS NOT NULL),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id),
  FOREIGN KEY (lane_id) REFERENCES source_lane (id),
  FOREIGN KEY (token_id) REFERENCES api_token (id),
  FOREIGN KEY (batch) REFERENCES receive_batch (id)
);

CREATE UNIQUE INDEX one_body_of_a_number ON received (lane_id, lo);

CREATE UNIQUE INDEX one_body_of_a_key ON received (dataset_id, token_id, "key");

CREATE UNIQUE INDEX one_body_of_a_file ON received (spool);

CREATE UNIQUE INDEX one_body_of_a_place ON received (batch, place) WHERE batch IS NOT NULL;

CREATE INDEX waiting_bodies ON received (dataset_id, id) WHERE batch IS NULL AND rows > 0;

CREATE INDEX spooled_bodies ON received (batch, spool_bytes) WHERE spool_removed_at IS NULL AND rows > 0;

CREATE INDEX keys_by_age ON received (received_at) WHERE key IS NOT NULL;

CREATE TRIGGER ranges_of_a_lane_never_overlap BEFORE INSERT ON received
WHEN NEW.lane_id IS NOT NULL AND NEW.lo <= coalesce((SELECT r.hi FROM received r
      WHERE r.lane_id = NEW.lane_id AND r.lo <= NEW.hi ORDER BY r.lo DESC LIMIT 1), 0)
BEGIN SELECT RAISE(ABORT, 'ranges_of_a_lane_never_overlap'); END;

CREATE TRIGGER a_body_never_changes BEFORE UPDATE ON received
WHEN NEW.dataset_id <> OLD.dataset_id OR coalesce(NEW.lane_id, 0) <> coalesce(OLD.lane_id, 0)
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
      WHERE b.id = NEW.batch AND (b.published_at IS NOT NULL OR b.ending = 'discarded')))
BEGIN SELECT RAISE(ABORT, 'a_body_never_changes'); END;

CREATE TRIGGER a_body_that_is_needed_stays BEFORE DELETE ON received
WHEN OLD.key IS NULL OR (OLD.rows > 0 AND OLD.spool_removed_at IS NULL)
BEGIN SELECT RAISE(ABORT, 'a_body_that_is_needed_stays'); END;

CREATE TABLE quarantined (
  id INTEGER NOT NULL,
  sink_id BIGINT NOT NULL,
  generation BIGINT NOT NULL,
  lane_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  reason TEXT NOT NULL,
  object TEXT NOT NULL,
  size BIGINT NOT NULL,
  options TEXT NOT NULL,
  form TEXT NOT NULL,
  state TEXT NOT NULL,
  replay_number BIGINT,
  at BIGINT NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT quarantined_not_negative CHECK (seq >= 1 AND size >= 0),
  CONSTRAINT quarantined_state_known CHECK (state IN ('held', 'replaying', 'replayed', 'discarded')),
  CONSTRAINT replay_number_positive CHECK (replay_number >= 1),
  CONSTRAINT replayed_has_a_number CHECK (state IN ('held', 'discarded') OR replay_number IS NOT NULL),
  FOREIGN KEY (sink_id) REFERENCES sink (id),
  FOREIGN KEY (lane_id) REFERENCES lane (id)
);

CREATE UNIQUE INDEX one_quarantined_of_a_number ON quarantined (lane_id, seq);

CREATE UNIQUE INDEX one_row_of_a_replay ON quarantined (sink_id, generation, replay_number) WHERE replay_number IS NOT NULL;

CREATE INDEX quarantined_by_state ON quarantined (sink_id, generation, state);

CREATE TRIGGER a_quarantined_row_goes_its_way BEFORE UPDATE ON quarantined
WHEN NEW.sink_id <> OLD.sink_id OR NEW.generation <> OLD.generation
    OR NEW.lane_id <> OLD.lane_id OR NEW.seq <> OLD.seq OR NEW.object <> OLD.object OR NEW.size <> OLD.size
    OR NEW.options <> OLD.options OR NEW.form <> OLD.form OR NEW.at <> OLD.at
    OR (OLD.replay_number IS NOT NULL AND (NEW.replay_number IS NULL OR NEW.replay_number <> OLD.replay_number))
    OR NOT ((OLD.state = 'held' AND NEW.state IN ('held', 'replaying', 'discarded'))
      OR (OLD.state = 'replaying' AND NEW.state IN ('replaying', 'replayed', 'held')))
BEGIN SELECT RAISE(ABORT, 'a_quarantined_row_goes_its_way'); END;

CREATE TRIGGER a_quarantined_row_stays BEFORE DELETE ON quarantined
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_quarantined_row_stays'); END;

CREATE TABLE floor (
  dataset_id BIGINT NOT NULL,
  floor BIGINT NOT NULL,
  changed_at BIGINT NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (dataset_id),
  CONSTRAINT floor_not_negative CHECK (floor >= 0),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TRIGGER a_floor_never_goes_back BEFORE UPDATE ON floor
WHEN NEW.floor < OLD.floor OR NEW.version <= OLD.version OR NEW.dataset_id <> OLD.dataset_id
BEGIN SELECT RAISE(ABORT, 'a_floor_never_goes_back'); END;

CREATE TRIGGER a_floor_stays BEFORE DELETE ON floor
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_floor_stays'); END;

CREATE TABLE hold (
  dataset_id BIGINT NOT NULL,
  sink_id BIGINT NOT NULL,
  rows BIGINT,
  since BIGINT NOT NULL,
  up_to BIGINT NOT NULL,
  PRIMARY KEY (dataset_id, sink_id),
  CONSTRAINT held_not_negative CHECK (rows >= 0),
  CONSTRAINT held_up_to_a_number CHECK (up_to >= 1),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id),
  FOREIGN KEY (sink_id) REFERENCES sink (id)
);

CREATE TRIGGER a_hold_keeps_its_beginning BEFORE UPDATE ON hold
WHEN NEW.dataset_id <> OLD.dataset_id OR NEW.sink_id <> OLD.sink_id OR NEW.since <> OLD.since
BEGIN SELECT RAISE(ABORT, 'a_hold_keeps_its_beginning'); END;

CREATE TABLE loss (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  sink_id BIGINT NOT NULL,
  generation BIGINT NOT NULL,
  partition TEXT NOT NULL,
  "after" BIGINT,
  until BIGINT NOT NULL,
  rows BIGINT,
  reason TEXT NOT NULL,
  at BIGINT NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT loss_generation_positive CHECK (generation >= 1),
  CONSTRAINT loss_not_empty CHECK (until >= 1 AND (after IS NULL OR (after >= 1 AND after < until))),
  CONSTRAINT loss_not_negative CHECK (rows >= 0),
  CONSTRAINT loss_reason_known CHECK (reason IN ('dropped', 'deleted', 'purged', 'forgotten')),
  CONSTRAINT only_the_forgotten_is_not_counted CHECK ((rows IS NULL) = (reason = 'forgotten')),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id),
  FOREIGN KEY (sink_id) REFERENCES sink (id)
);

CREATE INDEX losses_of_a_sink ON loss (sink_id, generation, until);

CREATE TRIGGER a_loss_never_changes BEFORE UPDATE ON loss
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_loss_never_changes'); END;

CREATE TRIGGER a_loss_stays BEFORE DELETE ON loss
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_loss_stays'); END;

CREATE TABLE purge (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  lo BIGINT NOT NULL,
  hi BIGINT NOT NULL,
  rows BIGINT NOT NULL,
  at BIGINT NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT purge_not_empty CHECK (lo >= 1 AND hi >= lo),
  CONSTRAINT purge_has_rows CHECK (rows >= 1),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE INDEX purges_of_a_dataset ON purge (dataset_id, lo);

CREATE TRIGGER a_purge_never_changes BEFORE UPDATE ON purge
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_purge_never_changes'); END;

CREATE TRIGGER a_purge_stays BEFORE DELETE ON purge
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_purge_stays'); END;

CREATE TABLE clock (
  dataset_id BIGINT NOT NULL,
  wall BIGINT NOT NULL,
  boot TEXT,
  boottime_us BIGINT,
  PRIMARY KEY (dataset_id),
  CONSTRAINT boot_whole CHECK ((boot IS NULL) = (boottime_us IS NULL)),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TABLE reject_folder (
  dataset_id BIGINT NOT NULL,
  node TEXT NOT NULL,
  folder TEXT NOT NULL,
  noted_at BIGINT NOT NULL,
  PRIMARY KEY (dataset_id, node, folder),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TABLE sweep_lease (
  id BIGINT NOT NULL,
  fence BIGINT NOT NULL,
  token TEXT,
  until BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT one_sweep_lease CHECK (id = 1),
  CONSTRAINT sweep_lease_whole CHECK ((token IS NULL) = (until IS NULL))
);

INSERT INTO sweep_lease (id, fence) VALUES (1, 0);

CREATE TRIGGER a_sweep_fence_only_rises BEFORE UPDATE ON sweep_lease
WHEN NEW.fence < OLD.fence
    OR (NEW.token IS NOT NULL AND NEW.fence = OLD.fence AND NEW.token <> coalesce(OLD.token, ''))
BEGIN SELECT RAISE(ABORT, 'a_sweep_fence_only_rises'); END;

CREATE TRIGGER the_sweep_lease_stays BEFORE DELETE ON sweep_lease
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'the_sweep_lease_stays'); END;

CREATE TABLE reconcile_run (
  id INTEGER NOT NULL,
  fence BIGINT NOT NULL,
  act BOOLEAN NOT NULL,
  "delete" BOOLEAN NOT NULL,
  accept_loss BOOLEAN NOT NULL,
  storage TEXT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT,
  why TEXT,
  outcome TEXT NOT NULL,
  started_at BIGINT NOT NULL,
  ended_at BIGINT,
  folder TEXT,
  PRIMARY KEY (id),
  CONSTRAINT run_state_known CHECK (state IN ('running', 'completed', 'aborted')),
  CONSTRAINT run_ends CHECK ((state = 'running') = (ended_at IS NULL)),
  CONSTRAINT aborted_has_a_reason CHECK ((state = 'aborted') = (reason IS NOT NULL))
);

CREATE UNIQUE INDEX one_run_of_a_fence ON reconcile_run (fence);

CREATE UNIQUE INDEX one_run_at_a_time ON reconcile_run (state) WHERE state = 'running';

CREATE TRIGGER a_run_only_ends BEFORE UPDATE ON reconcile_run
WHEN NOT (OLD.state = 'running' OR (OLD.state = 'aborted' AND NEW.state = 'aborted'
      AND (OLD.reason = 'unknown' OR NEW.reason = OLD.reason))) OR NEW.fence <> OLD.fence OR NEW.act <> OLD.act
    OR NEW.started_at <> OLD.started_at OR NEW.storage <> OLD.storage
BEGIN SELECT RAISE(ABORT, 'a_run_only_ends'); END;

CREATE TRIGGER a_run_that_is_needed_stays BEFORE DELETE ON reconcile_run
WHEN OLD.state = 'running' OR EXISTS (SELECT 1 FROM swept_file f
      WHERE f.run_id = OLD.id AND f.state IN ('begun', 'held', 'purging'))
BEGIN SELECT RAISE(ABORT, 'a_run_that_is_needed_stays'); END;

CREATE TABLE swept_file (
  id INTEGER NOT NULL,
  run_id BIGINT NOT NULL,
  kind TEXT NOT NULL,
  table_name TEXT,
  path TEXT NOT NULL,
  kept_at TEXT NOT NULL,
  size BIGINT NOT NULL,
  modified_ns BIGINT,
  state TEXT NOT NULL,
  why TEXT,
  begun_at BIGINT NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT swept_kind_known CHECK (kind IN ('orphan', 'foreign')),
  CONSTRAINT swept_state_known CHECK (state IN ('begun', 'held', 'left', 'restored', 'purging', 'purged', 'lost')),
  CONSTRAINT swept_not_negative CHECK (size >= 0),
  FOREIGN KEY (run_id) REFERENCES reconcile_run (id)
);

CREATE UNIQUE INDEX one_place_of_a_swept_file ON swept_file (kept_at);

CREATE INDEX swept_by_run ON swept_file (run_id, id);

CREATE INDEX swept_by_path ON swept_file (path) WHERE state IN ('begun', 'held', 'left', 'purging');

CREATE INDEX swept_begun ON swept_file (id) WHERE state = 'begun';

CREATE INDEX swept_purging ON swept_file (id) WHERE state = 'purging';

CREATE TRIGGER a_swept_file_goes_its_way BEFORE UPDATE ON swept_file
WHEN NEW.run_id <> OLD.run_id OR NEW.path <> OLD.path OR NEW.kept_at <> OLD.kept_at
    OR NEW.size <> OLD.size OR NEW.kind <> OLD.kind OR NEW.begun_at <> OLD.begun_at
    OR NOT ((OLD.state = 'begun')
      OR (OLD.state = 'left' AND NEW.state IN ('left', 'held', 'restored', 'purging', 'lost'))
      OR (OLD.state = 'held' AND NEW.state IN ('held', 'restored', 'purging', 'lost'))
      OR (OLD.state = 'purging' AND NEW.state IN ('purging', 'purged', 'restored', 'held'))
      OR (OLD.state = 'lost' AND NEW.state IN ('lost', 'restored')))
BEGIN SELECT RAISE(ABORT, 'a_swept_file_goes_its_way'); END;

CREATE TRIGGER a_file_in_quarantine_stays BEFORE DELETE ON swept_file
WHEN OLD.state IN ('begun', 'held', 'purging')
BEGIN SELECT RAISE(ABORT, 'a_file_in_quarantine_stays'); END;

CREATE TABLE dropped_batch (
  id INTEGER NOT NULL,
  run_id BIGINT NOT NULL,
  token TEXT NOT NULL,
  table_name TEXT NOT NULL,
  entries BIGINT NOT NULL,
  samples TEXT NOT NULL,
  gone TEXT NOT NULL,
  lost TEXT NOT NULL,
  state TEXT NOT NULL,
  dropped BIGINT,
  begun_at BIGINT NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT dropped_state_known CHECK (state IN ('begun', 'done', 'undone')),
  CONSTRAINT done_is_counted CHECK ((state = 'done') = (dropped IS NOT NULL)),
  CONSTRAINT dropped_bounded CHECK (entries >= 1 AND (dropped IS NULL OR dropped BETWEEN 0 AND entries)),
  FOREIGN KEY (run_id) REFERENCES reconcile_run (id)
);

CREATE UNIQUE INDEX one_batch_of_a_token ON dropped_batch (token);

CREATE INDEX dropped_by_run ON dropped_batch (run_id, id);

CREATE INDEX dropped_begun ON dropped_batch (id) WHERE state = 'begun';

CREATE TRIGGER a_dropped_batch_goes_its_way BEFORE UPDATE ON dropped_batch
WHEN NEW.run_id <> OLD.run_id OR NEW.token <> OLD.token OR NEW.table_name <> OLD.table_name
    OR NEW.entries <> OLD.entries OR (OLD.state = 'done') OR (OLD.state = 'undone' AND NEW.state <> 'done')
BEGIN SELECT RAISE(ABORT, 'a_dropped_batch_goes_its_way'); END;

CREATE TABLE table_check (
  dataset_id BIGINT NOT NULL,
  snapshot_id BIGINT,
  beyond BIGINT,
  PRIMARY KEY (dataset_id),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TABLE maintenance_run (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  kind TEXT NOT NULL,
  node TEXT NOT NULL,
  dry_run BOOLEAN NOT NULL,
  by_schedule BOOLEAN NOT NULL,
  started_at BIGINT NOT NULL,
  heartbeat_at BIGINT NOT NULL,
  ended_at BIGINT,
  outcome TEXT,
  reason TEXT,
  result TEXT,
  PRIMARY KEY (id),
  CONSTRAINT run_kind_known CHECK (kind IN ('compact', 'retain', 'expire', 'purge', 'number')),
  CONSTRAINT ended_has_an_outcome CHECK ((ended_at IS NULL) = (outcome IS NULL)),
  CONSTRAINT outcome_known CHECK (outcome IS NULL OR outcome IN ('done', 'skipped', 'refused', 'failed', 'died')),
  CONSTRAINT not_done_has_a_reason CHECK (outcome IS NULL OR outcome IN ('done', 'died') OR reason IS NOT NULL),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE UNIQUE INDEX one_run_of_a_kind ON maintenance_run (dataset_id, kind) WHERE ended_at IS NULL;

CREATE INDEX runs_by_kind ON maintenance_run (dataset_id, kind, id);

CREATE TRIGGER a_run_is_only_ended BEFORE UPDATE ON maintenance_run
WHEN OLD.ended_at IS NOT NULL OR NEW.dataset_id <> OLD.dataset_id OR NEW.kind <> OLD.kind
    OR NEW.dry_run <> OLD.dry_run OR NEW.started_at <> OLD.started_at OR NEW.node <> OLD.node
    OR NEW.by_schedule <> OLD.by_schedule
BEGIN SELECT RAISE(ABORT, 'a_run_is_only_ended'); END;

CREATE TABLE suspect_file (
  path_hash TEXT NOT NULL,
  path TEXT NOT NULL,
  table_name TEXT NOT NULL,
  entry TEXT NOT NULL,
  found_at BIGINT NOT NULL,
  released_at BIGINT,
  PRIMARY KEY (path_hash),
  CONSTRAINT released_after_it_was_found CHECK (released_at IS NULL OR released_at >= found_at)
);

CREATE TABLE table_state (
  dataset_id BIGINT NOT NULL,
  settled_snapshot BIGINT,
  settled_sequence BIGINT,
  doubt TEXT,
  trouble TEXT,
  trouble_since BIGINT,
  PRIMARY KEY (dataset_id),
  CONSTRAINT settled_has_a_sequence CHECK ((settled_snapshot IS NULL) = (settled_sequence IS NULL)),
  CONSTRAINT trouble_has_a_time CHECK ((trouble IS NULL) = (trouble_since IS NULL)),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TRIGGER an_ended_batch_gets_no_block BEFORE INSERT ON block
WHEN NEW.state = 'reserved' AND EXISTS (SELECT 1 FROM receive_batch b
    WHERE b.batch_id = NEW.batch_id AND b.dataset_id = NEW.dataset_id AND b.ended_at IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'an_ended_batch_gets_no_block'); END;

CREATE TABLE receive_hold (
  dataset_id BIGINT NOT NULL,
  since BIGINT NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (dataset_id),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);
