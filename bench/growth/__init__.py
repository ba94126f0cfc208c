"""What becomes of the daily work as a table and its history grow."""
