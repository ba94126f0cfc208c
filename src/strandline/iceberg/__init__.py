"""Spark, the catalog and Iceberg tables: the only room that knows Iceberg."""
