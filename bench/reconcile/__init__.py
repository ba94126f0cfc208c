"""The reconciler against Iceberg's own procedure."""
