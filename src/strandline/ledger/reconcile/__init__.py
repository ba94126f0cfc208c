"""Runs of the reconciler, and the files and entries that they acted on."""
