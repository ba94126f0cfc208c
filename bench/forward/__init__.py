"""Rows over HTTP."""
