"""What each step costs in transactions, requests and bytes, and where each part stops scaling: for docs/scale.md."""
