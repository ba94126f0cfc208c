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
