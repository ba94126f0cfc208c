"""Drift between tables and storage: found, reported, and repaired so that it can be undone."""
