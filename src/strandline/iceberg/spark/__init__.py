"""Iceberg tables through Spark's JVM."""
