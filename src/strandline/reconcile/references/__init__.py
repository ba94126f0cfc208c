"""What the tables of a catalog reference."""
