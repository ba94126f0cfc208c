ALTER TABLE maintenance_run ADD COLUMN stop_asked_at BIGINT;

ALTER TABLE reconcile_run ADD COLUMN stop_asked_at BIGINT;

CREATE TRIGGER maintenance_stays_called_off BEFORE UPDATE ON maintenance_run
WHEN OLD.stop_asked_at IS NOT NULL AND (NEW.stop_asked_at IS NULL OR NEW.stop_asked_at <> OLD.stop_asked_at)
BEGIN SELECT RAISE(ABORT, 'maintenance_stays_called_off'); END;

CREATE TRIGGER reconcile_stays_called_off BEFORE UPDATE ON reconcile_run
WHEN OLD.stop_asked_at IS NOT NULL AND (NEW.stop_asked_at IS NULL OR NEW.stop_asked_at <> OLD.stop_asked_at)
BEGIN SELECT RAISE(ABORT, 'reconcile_stays_called_off'); END;
