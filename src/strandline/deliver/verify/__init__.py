"""The proof that sinks hold what was delivered to them."""
