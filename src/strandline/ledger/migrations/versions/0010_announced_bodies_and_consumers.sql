CREATE TRIGGER only_a_leader_receives BEFORE INSERT ON received
WHEN EXISTS (SELECT 1 FROM site s WHERE s.role = 'follower' OR s.superseded_term IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM receive_batch b WHERE b.id = NEW.batch AND b.published_at IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'only_a_leader_receives'); END;

CREATE TRIGGER a_body_that_is_needed_stays BEFORE DELETE ON received
WHEN (OLD.key IS NULL OR (OLD.rows > 0 AND OLD.spool_removed_at IS NULL))
    AND NOT EXISTS (SELECT 1 FROM site s WHERE s.role = 'follower')
BEGIN SELECT RAISE(ABORT, 'a_body_that_is_needed_stays'); END;

CREATE TRIGGER a_batch_stays BEFORE DELETE ON receive_batch
WHEN NOT EXISTS (SELECT 1 FROM site s WHERE s.role = 'follower')
BEGIN SELECT RAISE(ABORT, 'a_batch_stays'); END;

CREATE TABLE consumer (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  name TEXT NOT NULL,
  watermark BIGINT NOT NULL,
  fence BIGINT NOT NULL,
  on_lag TEXT NOT NULL,
  drop_after_seconds BIGINT,
  dropped_upto BIGINT,
  added_at BIGINT NOT NULL,
  reported_at BIGINT,
  held_since BIGINT,
  removed_at BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT consumer_has_a_name CHECK (name <> ''),
  CONSTRAINT consumer_watermark_not_negative CHECK (watermark >= 0),
  CONSTRAINT consumer_fence_positive CHECK (fence >= 1),
  CONSTRAINT consumer_on_lag_known CHECK (on_lag IN ('hold', 'drop')),
  CONSTRAINT only_a_dropping_consumer_has_a_bound CHECK ((on_lag = 'drop') = (drop_after_seconds IS NOT NULL)),
  CONSTRAINT consumer_drop_bound_not_negative CHECK (drop_after_seconds >= 0),
  CONSTRAINT consumer_dropped_upto_positive CHECK (dropped_upto >= 1),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE UNIQUE INDEX one_consumer_of_a_name ON consumer (dataset_id, name) WHERE removed_at IS NULL;

CREATE TRIGGER a_consumer_never_goes_back BEFORE UPDATE ON consumer
WHEN NEW.dataset_id <> OLD.dataset_id OR NEW.name <> OLD.name OR NEW.added_at <> OLD.added_at
    OR NEW.watermark < OLD.watermark OR NEW.fence < OLD.fence
    OR coalesce(NEW.dropped_upto, 0) < coalesce(OLD.dropped_upto, 0)
    OR (OLD.removed_at IS NOT NULL AND NEW.removed_at IS NULL)
BEGIN SELECT RAISE(ABORT, 'a_consumer_never_goes_back'); END;

CREATE TRIGGER a_consumer_stays BEFORE DELETE ON consumer
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_consumer_stays'); END;

CREATE INDEX last_published_blocks ON block (dataset_id, changed_at) WHERE state = 'published' AND snapshot_id IS NOT NULL;
