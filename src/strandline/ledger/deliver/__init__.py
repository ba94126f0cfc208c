"""Sinks, lanes, intents, chunks, and rows that sinks refused."""
