"""Readers that have a name."""
