"""Bounded reads of settled rows, and the checks that everyone makes before reading a table."""
