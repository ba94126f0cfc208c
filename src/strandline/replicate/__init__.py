"""A second site that follows a leader, shard by shard."""
