"""Chunks are built, sent and acknowledged; refused ones are split."""
