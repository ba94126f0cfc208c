"""Ways in: everything that turns rows from outside into stamped, staged and published blocks."""
