CREATE TRIGGER a_block_moves_forward_only BEFORE UPDATE ON block
WHEN NEW.lo <> OLD.lo OR NEW.hi <> OLD.hi OR NEW.dataset_id <> OLD.dataset_id OR NEW.fence < OLD.fence
    OR NOT (NEW.state = OLD.state
      OR (OLD.state = 'reserved' AND NEW.state IN ('staged', 'published', 'abandoned'))
      OR (OLD.state = 'staged' AND NEW.state = 'published')
      OR (OLD.state = 'staged' AND NEW.state = 'abandoned' AND NEW.reason LIKE 'voided:%')
      OR (OLD.state = 'staged' AND NEW.state = 'reserved' AND OLD.offered AND NEW.fence > OLD.fence)
      OR (OLD.state IN ('staged', 'published') AND NEW.state = 'abandoned' AND NEW.reason LIKE 'cut:%' AND OLD.item <> 'cut'))
BEGIN SELECT RAISE(ABORT, 'a_block_moves_forward_only'); END;

CREATE TABLE set_aside (
  id INTEGER NOT NULL,
  dataset_id BIGINT NOT NULL,
  number BIGINT,
  place TEXT NOT NULL,
  row_count BIGINT,
  files BIGINT NOT NULL,
  at BIGINT NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT set_aside_by_a_cut_is_counted CHECK (number IS NULL OR row_count IS NOT NULL),
  CONSTRAINT set_aside_counts_not_negative CHECK (row_count >= 0 AND files >= 0),
  FOREIGN KEY (dataset_id) REFERENCES dataset (id)
);

CREATE TRIGGER what_was_set_aside_stays BEFORE DELETE ON set_aside
WHEN 1 = 1
BEGIN SELECT RAISE(ABORT, 'what_was_set_aside_stays'); END;

CREATE TRIGGER only_a_leader_receives BEFORE INSERT ON received
WHEN EXISTS (SELECT 1 FROM site s WHERE s.role = 'follower' OR s.superseded_term IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'only_a_leader_receives'); END;
