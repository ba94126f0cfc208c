"""What a declaration says, what a lake has, and the difference between them."""
