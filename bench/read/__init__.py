"""What it costs to read what is new."""
