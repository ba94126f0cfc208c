"""Runs of maintenance, floors, and what retention skipped or kept."""
