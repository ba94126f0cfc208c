CREATE INDEX last_published_blocks ON block (dataset_id, changed_at) WHERE state = 'published' AND snapshot_id IS NOT NULL;
