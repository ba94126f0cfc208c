"""Accesses storage, for every room."""
