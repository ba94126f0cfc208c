"""Columns and types as people write them, or as data files show them."""
