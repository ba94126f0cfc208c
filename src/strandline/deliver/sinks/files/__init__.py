"""The kind `files`."""
