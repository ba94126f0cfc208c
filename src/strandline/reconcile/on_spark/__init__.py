"""The same survey on Spark's executors, for lakes that do not fit into one process."""
