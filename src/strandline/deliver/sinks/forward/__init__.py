"""The kind `forward`."""
