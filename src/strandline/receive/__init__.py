"""Receives rows over HTTP, from `forward` sinks and from any other client."""
