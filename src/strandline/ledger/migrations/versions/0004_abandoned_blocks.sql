CREATE INDEX abandoned_blocks ON block (dataset_id, hi) WHERE state = 'abandoned';
