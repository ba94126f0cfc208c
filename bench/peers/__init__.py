"""Peers that are packages of their own: what they need, and the processes that they run in."""
