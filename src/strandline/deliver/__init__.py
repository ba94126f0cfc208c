"""Sealed rows to sinks, exactly once."""
