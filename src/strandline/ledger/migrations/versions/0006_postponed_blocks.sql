CREATE INDEX postponed_blocks ON block (dataset_id, lo) WHERE state = 'reserved' AND kind = 'recovered';

CREATE TRIGGER no_block_before_a_postponed_resync BEFORE INSERT ON block
WHEN NEW.state = 'reserved' AND NEW.kind <> 'recovered' AND EXISTS (SELECT 1 FROM block b
    WHERE b.dataset_id = NEW.dataset_id AND b.state = 'reserved' AND b.kind = 'recovered')
BEGIN SELECT RAISE(ABORT, 'no_block_before_a_postponed_resync'); END;
