ALTER TABLE sequence ADD COLUMN move_state TEXT
  CONSTRAINT move_state_known CHECK (move_state IN ('leaving', 'left', 'arriving'));

ALTER TABLE sequence ADD COLUMN move_id TEXT
  CONSTRAINT a_move_has_an_id CHECK ((move_state IS NULL) = (move_id IS NULL));

ALTER TABLE sequence ADD COLUMN move_place TEXT
  CONSTRAINT a_move_has_a_place CHECK ((move_state IS NULL) = (move_place IS NULL));

CREATE TRIGGER a_ledger_that_was_left_stays_so BEFORE UPDATE ON sequence
WHEN OLD.move_state = 'left' AND coalesce(NEW.move_state, '') <> 'left'
BEGIN SELECT RAISE(ABORT, 'a_ledger_that_was_left_stays_so'); END;
