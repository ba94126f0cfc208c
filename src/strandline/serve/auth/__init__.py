"""Who a request comes from, and what they may do."""
