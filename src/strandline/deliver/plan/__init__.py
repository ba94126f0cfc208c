"""What a lane gets next: how large its rows are, and how a range is cut into chunks."""
