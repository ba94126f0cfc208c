"""Iceberg tables without a JVM, through PyIceberg. Importing these modules imports PyIceberg."""
