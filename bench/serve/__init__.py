"""What a server and the shell cost on a large lake."""
