"""The kind `s3`."""
