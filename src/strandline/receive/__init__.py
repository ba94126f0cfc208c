"""The other end of `forward`, and a way in for any HTTP client."""
