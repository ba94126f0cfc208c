"""What is wrong now, how bad it is, and what to do next."""
