"""Runs of maintenance, floors, and the rows that retention skipped or held back."""
