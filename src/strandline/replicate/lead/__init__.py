"""The leader's side: offers, rows of segments, followers, and the lease."""
