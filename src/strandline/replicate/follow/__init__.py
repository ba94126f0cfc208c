"""The follower's side: asks the leader, records what is offered, and applies it."""
