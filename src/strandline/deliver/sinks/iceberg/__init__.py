"""The kind `iceberg`."""
