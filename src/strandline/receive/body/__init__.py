"""Parses request bodies into typed rows, within limits."""
