"""Finds and reports drift between tables and storage, and repairs it so that the repair can be undone."""
