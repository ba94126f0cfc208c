"""What a leader offers, its followers, and what a follower has recorded."""
