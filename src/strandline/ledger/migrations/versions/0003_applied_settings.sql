CREATE TABLE applied_setting (
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  applied_at BIGINT NOT NULL,
  PRIMARY KEY (name),
  CONSTRAINT setting_is_a_rule_or_a_schedule CHECK (name LIKE 'retain.%' OR name LIKE 'schedule.%')
);

ALTER TABLE sink ADD COLUMN from_now BOOLEAN;
