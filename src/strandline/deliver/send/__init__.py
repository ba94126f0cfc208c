"""Builds, sends and acknowledges chunks, and splits those that a sink refuses."""
