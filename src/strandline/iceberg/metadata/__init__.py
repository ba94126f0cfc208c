"""A table's metadata as plain values, and decisions based on it. No Spark, no PyIceberg."""
