"""Compares storage with references: pure, except for the functions to access storage that callers pass in."""
