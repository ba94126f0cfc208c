"""Measurements: ours and a peer's side by side, in one run."""
