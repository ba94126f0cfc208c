"""What it costs to bring rows in, and to start."""
