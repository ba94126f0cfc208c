"""The same survey by executors, for lakes that one process is not to hold."""
