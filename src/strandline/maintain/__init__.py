"""Maintenance: compaction, retention, expiry of snapshots, and rows deleted on demand."""
