"""Bounded reads of settled rows, and the checks that every stage makes before it reads a table."""
