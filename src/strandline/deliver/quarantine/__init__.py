"""Rows that sinks refused: stored, listed, replayed, discarded."""
