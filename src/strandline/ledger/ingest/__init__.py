"""Datasets, sequence numbers and blocks."""
