"""What it costs to read a dataset as a stream."""
