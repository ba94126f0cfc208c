ALTER TABLE site ADD COLUMN number BIGINT
  CONSTRAINT number_of_a_site_bounded CHECK (number BETWEEN 0 AND 15);

ALTER TABLE site ADD COLUMN instance TEXT;

ALTER TABLE site ADD COLUMN superseded_term BIGINT
  CONSTRAINT only_a_leader_is_superseded CHECK (superseded_term IS NULL OR (role = 'leader' AND superseded_term > term));

ALTER TABLE site ADD COLUMN superseded_by TEXT
  CONSTRAINT a_successor_has_a_term CHECK (superseded_by IS NULL OR superseded_term IS NOT NULL);

ALTER TABLE site ADD COLUMN promoting_term BIGINT
  CONSTRAINT only_a_follower_is_promoted CHECK (promoting_term IS NULL OR role = 'follower');

ALTER TABLE site ADD COLUMN claimed_term BIGINT
  CONSTRAINT a_claim_is_of_a_promotion CHECK (claimed_term IS NULL OR (promoting_term IS NOT NULL AND claimed_term > promoting_term));

ALTER TABLE followed_dataset ADD COLUMN term BIGINT DEFAULT 1 NOT NULL
  CONSTRAINT followed_term_positive CHECK (term >= 1);

ALTER TABLE follower ADD COLUMN site_number BIGINT
  CONSTRAINT number_of_a_follower_bounded CHECK (site_number BETWEEN 0 AND 15);

ALTER TABLE follower ADD COLUMN member BOOLEAN DEFAULT FALSE NOT NULL
  CONSTRAINT a_member_is_waited_for CHECK (waited_for OR NOT member)
  CONSTRAINT a_member_has_a_number CHECK (site_number IS NOT NULL OR NOT member);

ALTER TABLE follower ADD COLUMN instance TEXT
  CONSTRAINT a_member_has_an_instance CHECK (instance IS NOT NULL OR NOT member);

ALTER TABLE follower ADD COLUMN leaving BOOLEAN DEFAULT FALSE NOT NULL;

CREATE UNIQUE INDEX one_follower_of_a_site_number ON follower (site_number) WHERE removed_at IS NULL;

CREATE TRIGGER a_site_keeps_its_number BEFORE UPDATE ON site
WHEN OLD.number IS NOT NULL AND (NEW.number IS NULL OR NEW.number <> OLD.number)
BEGIN SELECT RAISE(ABORT, 'a_site_keeps_its_number'); END;

CREATE TRIGGER a_site_stays_the_instance_that_it_is BEFORE UPDATE ON site
WHEN OLD.instance IS NOT NULL AND (NEW.instance IS NULL OR NEW.instance <> OLD.instance)
BEGIN SELECT RAISE(ABORT, 'a_site_stays_the_instance_that_it_is'); END;

CREATE TRIGGER a_follower_is_one_instance BEFORE UPDATE ON follower
WHEN OLD.instance IS NOT NULL AND (NEW.instance IS NULL OR NEW.instance <> OLD.instance)
BEGIN SELECT RAISE(ABORT, 'a_follower_is_one_instance'); END;

CREATE TRIGGER who_leaves_does_not_stay BEFORE UPDATE ON follower
WHEN OLD.leaving AND NOT NEW.leaving
BEGIN SELECT RAISE(ABORT, 'who_leaves_does_not_stay'); END;

CREATE TRIGGER a_superseded_leader_stays_so BEFORE UPDATE ON site
WHEN OLD.superseded_term IS NOT NULL AND NEW.role = 'leader'
    AND (NEW.superseded_term IS NULL OR NEW.superseded_term < OLD.superseded_term)
BEGIN SELECT RAISE(ABORT, 'a_superseded_leader_stays_so'); END;

CREATE TRIGGER a_superseded_leader_takes_no_batch BEFORE INSERT ON block
WHEN NEW.state = 'reserved' AND NOT NEW.offered AND EXISTS (SELECT 1 FROM site s WHERE s.superseded_term IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'a_superseded_leader_takes_no_batch'); END;

CREATE TRIGGER only_a_leader_stages_a_batch BEFORE UPDATE ON block
WHEN NEW.state = 'staged' AND OLD.state <> 'staged' AND NOT OLD.offered
    AND EXISTS (SELECT 1 FROM site s WHERE s.role = 'follower' OR s.superseded_term IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'only_a_leader_stages_a_batch'); END;

CREATE TRIGGER a_followed_term_never_goes_back BEFORE UPDATE ON followed_dataset
WHEN NEW.term < OLD.term
BEGIN SELECT RAISE(ABORT, 'a_followed_term_never_goes_back'); END;

CREATE TRIGGER a_site_that_claims_a_term_records_nothing BEFORE UPDATE ON followed_dataset
WHEN NEW.bound <> OLD.bound AND EXISTS (SELECT 1 FROM site s WHERE s.claimed_term IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'a_site_that_claims_a_term_records_nothing'); END;

CREATE TRIGGER a_site_that_claims_a_term_stages_nothing BEFORE UPDATE ON block
WHEN NEW.state = 'staged' AND OLD.state <> 'staged' AND EXISTS (SELECT 1 FROM site s WHERE s.claimed_term IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'a_site_that_claims_a_term_stages_nothing'); END;

ALTER TABLE source ADD COLUMN term BIGINT DEFAULT 1 NOT NULL
  CONSTRAINT source_term_positive CHECK (term >= 1);

CREATE TRIGGER a_source_keeps_its_term BEFORE UPDATE ON source
WHEN NEW.term < OLD.term
BEGIN SELECT RAISE(ABORT, 'a_source_keeps_its_term'); END;

CREATE TABLE leader_sinks (
  id BIGINT NOT NULL,
  document TEXT NOT NULL,
  told_at BIGINT NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT one_document_of_sinks CHECK (id = 1)
);

CREATE TABLE leader_sink (
  dataset TEXT NOT NULL,
  name TEXT NOT NULL,
  lowest BIGINT,
  paused BOOLEAN NOT NULL,
  held_since BIGINT,
  held_rows BIGINT,
  held_upto BIGINT,
  PRIMARY KEY (dataset, name),
  CONSTRAINT a_held_sink_is_held_whole CHECK ((held_since IS NULL) = (held_upto IS NULL))
);
