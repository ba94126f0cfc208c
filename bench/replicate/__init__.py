"""A second site that follows: how fast it catches up, what it costs when nothing is new, how far it is behind."""
