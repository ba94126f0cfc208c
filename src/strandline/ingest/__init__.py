"""Turns rows from outside into stamped, staged and published blocks."""
