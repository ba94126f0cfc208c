"""Proves that sinks hold what was delivered to them."""
