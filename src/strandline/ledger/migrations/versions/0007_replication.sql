ALTER TABLE dataset ADD COLUMN uuid TEXT DEFAULT '' NOT NULL;

ALTER TABLE dataset ADD COLUMN first_shard BIGINT DEFAULT 0 NOT NULL
  CONSTRAINT first_shard_not_negative CHECK (first_shard >= 0);

ALTER TABLE dataset ADD COLUMN shards BIGINT DEFAULT 1 NOT NULL
  CONSTRAINT shards_bounded CHECK (shards BETWEEN 1 AND 1024);

ALTER TABLE block ADD COLUMN item TEXT DEFAULT 'segment' NOT NULL
  CONSTRAINT item_known CHECK (item IN ('segment', 'purge', 'cut'))
  CONSTRAINT only_a_segment_has_rows CHECK (item = 'segment' OR (kind = 'batch' AND hi = lo AND coalesce(row_count, 0) = 0))
  CONSTRAINT only_a_segment_is_staged CHECK (item = 'segment' OR state <> 'staged');

ALTER TABLE block ADD COLUMN shard BIGINT
  CONSTRAINT shard_not_negative CHECK (shard >= 0)
  CONSTRAINT only_a_segment_has_a_shard CHECK (item = 'segment' OR shard IS NULL);

ALTER TABLE block ADD COLUMN ranges TEXT
  CONSTRAINT only_a_segment_has_no_ranges CHECK ((item = 'segment') = (ranges IS NULL));

ALTER TABLE block ADD COLUMN offered BOOLEAN DEFAULT FALSE NOT NULL;

ALTER TABLE block ADD COLUMN offered_rows BIGINT
  CONSTRAINT offered_rows_not_negative CHECK (offered_rows >= 0)
  CONSTRAINT only_an_offered_block_has_offered_rows CHECK (offered OR offered_rows IS NULL);

UPDATE dataset SET uuid = table_uuid, first_shard = (SELECT count(*) FROM dataset d WHERE d.id < dataset.id);

UPDATE block SET shard = (SELECT d.first_shard FROM dataset d WHERE d.id = block.dataset_id);

DROP INDEX one_block_of_a_number;

CREATE UNIQUE INDEX one_block_of_a_number ON block (lo) WHERE kind <> 'recovered' AND NOT offered;

CREATE UNIQUE INDEX one_offered_block_of_a_number ON block (dataset_id, lo) WHERE offered AND state <> 'abandoned';

CREATE UNIQUE INDEX one_dataset_of_an_id ON dataset (uuid) WHERE dropped_at IS NULL;

CREATE TRIGGER a_dataset_has_an_id_and_shards_of_its_own BEFORE INSERT ON dataset
WHEN NEW.uuid = '' OR EXISTS (SELECT 1 FROM dataset d
    WHERE NEW.first_shard < d.first_shard + d.shards AND d.first_shard < NEW.first_shard + NEW.shards)
BEGIN SELECT RAISE(ABORT, 'a_dataset_has_an_id_and_shards_of_its_own'); END;

CREATE TRIGGER a_dataset_keeps_its_id_and_shards BEFORE UPDATE ON dataset
WHEN NEW.uuid <> OLD.uuid OR NEW.first_shard <> OLD.first_shard OR NEW.shards <> OLD.shards
BEGIN SELECT RAISE(ABORT, 'a_dataset_keeps_its_id_and_shards'); END;

CREATE TRIGGER a_segment_has_a_shard_of_its_dataset BEFORE INSERT ON block
WHEN NEW.item = 'segment' AND (NEW.shard IS NULL OR NOT EXISTS (SELECT 1 FROM dataset d
    WHERE d.id = NEW.dataset_id AND NEW.shard >= d.first_shard AND NEW.shard < d.first_shard + d.shards))
BEGIN SELECT RAISE(ABORT, 'a_segment_has_a_shard_of_its_dataset'); END;

CREATE TRIGGER a_block_moves_forward_only BEFORE UPDATE ON block
WHEN NEW.lo <> OLD.lo OR NEW.hi <> OLD.hi OR NEW.dataset_id <> OLD.dataset_id OR NEW.fence < OLD.fence
    OR NOT (NEW.state = OLD.state
      OR (OLD.state = 'reserved' AND NEW.state IN ('staged', 'published', 'abandoned'))
      OR (OLD.state = 'staged' AND NEW.state = 'published')
      OR (OLD.state = 'staged' AND NEW.state = 'abandoned' AND NEW.reason LIKE 'voided:%')
      OR (OLD.state = 'staged' AND NEW.state = 'reserved' AND OLD.offered AND NEW.fence > OLD.fence))
BEGIN SELECT RAISE(ABORT, 'a_block_moves_forward_only'); END;

CREATE TRIGGER a_block_stays_the_item_that_it_is BEFORE UPDATE ON block
WHEN NEW.item <> OLD.item OR coalesce(NEW.shard, -1) <> coalesce(OLD.shard, -1)
    OR coalesce(NEW.ranges, '') <> coalesce(OLD.ranges, '') OR NEW.offered <> OLD.offered
    OR coalesce(NEW.offered_rows, -1) <> coalesce(OLD.offered_rows, -1)
BEGIN SELECT RAISE(ABORT, 'a_block_stays_the_item_that_it_is'); END;

CREATE TRIGGER only_a_cut_abandons_an_offered_block BEFORE UPDATE ON block
WHEN OLD.offered AND NEW.state = 'abandoned' AND OLD.state <> 'abandoned' AND NEW.reason NOT LIKE 'cut:%'
BEGIN SELECT RAISE(ABORT, 'only_a_cut_abandons_an_offered_block'); END;

CREATE TRIGGER no_block_before_a_postponed_resync BEFORE INSERT ON block
WHEN NEW.state = 'reserved' AND NEW.kind <> 'recovered' AND EXISTS (SELECT 1 FROM block b
    WHERE b.dataset_id = NEW.dataset_id AND b.state = 'reserved' AND b.kind = 'recovered' AND NOT b.offered)
BEGIN SELECT RAISE(ABORT, 'no_block_before_a_postponed_resync'); END;

CREATE TABLE site (
  id BIGINT NOT NULL,
  role TEXT NOT NULL,
  term BIGINT NOT NULL,
  leader TEXT,
  leader_token TEXT,
  changed_at BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT one_site CHECK (id = 1),
  CONSTRAINT role_of_a_site_known CHECK (role IN ('leader', 'follower')),
  CONSTRAINT term_positive CHECK (term >= 1),
  CONSTRAINT a_follower_has_a_leader CHECK ((role = 'follower') = (leader IS NOT NULL)),
  CONSTRAINT only_a_follower_has_a_leaders_token CHECK (leader_token IS NULL OR role = 'follower')
);

INSERT INTO site (id, role, term) VALUES (1, 'leader', 1);

CREATE TRIGGER a_term_never_goes_back BEFORE UPDATE ON site
WHEN NEW.term < OLD.term
BEGIN SELECT RAISE(ABORT, 'a_term_never_goes_back'); END;

CREATE TRIGGER the_site_stays BEFORE DELETE ON site
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'the_site_stays'); END;

CREATE TRIGGER a_follower_takes_no_batch BEFORE INSERT ON block
WHEN NEW.state = 'reserved' AND NOT NEW.offered AND EXISTS (SELECT 1 FROM site s WHERE s.role = 'follower')
BEGIN SELECT RAISE(ABORT, 'a_follower_takes_no_batch'); END;

CREATE TABLE followed_dataset (
  dataset_id BIGINT NOT NULL,
  bound BIGINT NOT NULL,
  witnessed BIGINT,
  leader_seal BIGINT,
  offered_at BIGINT,
  PRIMARY KEY (dataset_id),
  CONSTRAINT bound_not_negative CHECK (bound >= 0),
  CONSTRAINT witnessed_positive CHECK (witnessed >= 1),
  CONSTRAINT leader_seal_positive CHECK (leader_seal >= 1),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TRIGGER a_bound_never_goes_back BEFORE UPDATE ON followed_dataset
WHEN NEW.bound < OLD.bound OR NEW.dataset_id <> OLD.dataset_id OR NEW.witnessed < OLD.witnessed
    OR (NEW.witnessed IS NULL AND OLD.witnessed IS NOT NULL AND NEW.bound < OLD.witnessed
      AND NEW.bound < coalesce(NEW.leader_seal, 0))
BEGIN SELECT RAISE(ABORT, 'a_bound_never_goes_back'); END;

CREATE TABLE leader_contact (
  id BIGINT NOT NULL,
  answered_at BIGINT,
  failing_since BIGINT,
  failed_step TEXT,
  error TEXT,
  hint TEXT,
  PRIMARY KEY (id),
  CONSTRAINT one_leader_contact CHECK (id = 1),
  CONSTRAINT failed_step_known CHECK (failed_step IN ('ask', 'apply', 'tell')),
  CONSTRAINT a_failure_is_told_whole CHECK ((failing_since IS NULL) = (error IS NULL)
    AND (failing_since IS NULL) = (failed_step IS NULL) AND (hint IS NULL OR error IS NOT NULL))
);

CREATE TABLE follower (
  id INTEGER NOT NULL,
  name TEXT NOT NULL,
  token_id BIGINT,
  datasets TEXT,
  on_lag TEXT NOT NULL,
  drop_after_seconds BIGINT,
  waited_for BOOLEAN NOT NULL,
  term BIGINT NOT NULL,
  added_at BIGINT NOT NULL,
  told_at BIGINT,
  removed_at BIGINT,
  PRIMARY KEY (id),
  CONSTRAINT follower_on_lag_known CHECK (on_lag IN ('hold', 'drop')),
  CONSTRAINT only_a_drop_has_a_bound CHECK ((on_lag = 'drop') = (drop_after_seconds IS NOT NULL)),
  CONSTRAINT drop_bound_not_negative CHECK (drop_after_seconds >= 0),
  CONSTRAINT follower_term_positive CHECK (term >= 1),
  CONSTRAINT a_removed_follower_is_not_waited_for CHECK (removed_at IS NULL OR NOT waited_for),
  FOREIGN KEY (token_id) REFERENCES api_token (id)
);

CREATE UNIQUE INDEX one_follower_of_a_name ON follower (name) WHERE removed_at IS NULL;

CREATE TRIGGER a_follower_never_goes_back BEFORE UPDATE ON follower
WHEN NEW.name <> OLD.name OR NEW.added_at <> OLD.added_at OR NEW.term < OLD.term
    OR (OLD.removed_at IS NOT NULL AND NEW.removed_at IS NULL)
BEGIN SELECT RAISE(ABORT, 'a_follower_never_goes_back'); END;

CREATE TRIGGER a_follower_stays BEFORE DELETE ON follower
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'a_follower_stays'); END;

CREATE TABLE follower_seal (
  follower_id BIGINT NOT NULL,
  dataset_id BIGINT NOT NULL,
  seal BIGINT NOT NULL,
  term BIGINT NOT NULL,
  told_at BIGINT NOT NULL,
  held_since BIGINT,
  dropped_upto BIGINT,
  PRIMARY KEY (follower_id, dataset_id),
  CONSTRAINT follower_seal_not_negative CHECK (seal >= 0),
  CONSTRAINT follower_seal_term_positive CHECK (term >= 1),
  CONSTRAINT dropped_upto_positive CHECK (dropped_upto >= 1),
  FOREIGN KEY (follower_id) REFERENCES follower (id),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE INDEX follower_seals_of_a_dataset ON follower_seal (dataset_id, seal);

CREATE TRIGGER a_followers_seal_never_goes_back BEFORE UPDATE ON follower_seal
WHEN NEW.follower_id <> OLD.follower_id OR NEW.dataset_id <> OLD.dataset_id OR NEW.term < OLD.term
    OR (NEW.term = OLD.term AND NEW.seal < OLD.seal) OR coalesce(NEW.dropped_upto, 0) < coalesce(OLD.dropped_upto, 0)
BEGIN SELECT RAISE(ABORT, 'a_followers_seal_never_goes_back'); END;

CREATE TABLE follower_mark (
  follower_id BIGINT NOT NULL,
  dataset_id BIGINT NOT NULL,
  shard BIGINT NOT NULL,
  mark BIGINT NOT NULL,
  term BIGINT NOT NULL,
  told_at BIGINT NOT NULL,
  PRIMARY KEY (follower_id, shard),
  CONSTRAINT follower_mark_not_negative CHECK (mark >= 0 AND shard >= 0),
  CONSTRAINT follower_mark_term_positive CHECK (term >= 1),
  FOREIGN KEY (follower_id) REFERENCES follower (id),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TRIGGER a_followers_mark_never_goes_back BEFORE UPDATE ON follower_mark
WHEN NEW.follower_id <> OLD.follower_id OR NEW.dataset_id <> OLD.dataset_id OR NEW.shard <> OLD.shard
    OR NEW.term < OLD.term OR (NEW.term = OLD.term AND NEW.mark < OLD.mark)
BEGIN SELECT RAISE(ABORT, 'a_followers_mark_never_goes_back'); END;

CREATE INDEX recovered_blocks ON block (dataset_id, hi) WHERE state = 'published' AND kind = 'recovered';
