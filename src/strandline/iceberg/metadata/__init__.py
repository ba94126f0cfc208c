"""A table's metadata as plain values, and the decisions that rest on it. No Spark, no PyIceberg."""
