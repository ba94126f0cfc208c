"""Columns and types as a person writes them, or as a data file shows them."""
