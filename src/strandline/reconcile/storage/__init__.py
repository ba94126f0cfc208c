"""Where files lie: listed, looked at, moved aside and back."""
