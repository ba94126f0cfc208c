"""Storage and references beside each other: pure, but for the ways to look that are handed in."""
