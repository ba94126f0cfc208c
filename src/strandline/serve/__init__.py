"""The HTTP API of a lake, and what protects it."""
