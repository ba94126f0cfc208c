"""The kind `postgres`."""
