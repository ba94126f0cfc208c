"""Reads what the tables of a catalog reference."""
