"""Tokens, senders, received bodies and the batches that they form."""
