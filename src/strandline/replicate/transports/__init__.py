"""The ways in which a follower reaches its leader."""
