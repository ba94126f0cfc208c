"""Digests of what was delivered, and who made the bytes: `sha256:<hex>`, and behind a `;` the encoder with its version.

Where a sink keeps only the digest of a body, the rows behind it cannot be compared again once another version of a
library makes other bytes of them, or the sink was set up anew with another format: then a digest that differs says
nothing.
"""

from __future__ import annotations


def made_by(digest: str, encoder: str) -> str:
    return f"{digest};{encoder}"


def bare(digest: str) -> str:
    return digest.partition(";")[0]


def same_bytes(one: str, other: str) -> bool:
    return bare(one) == bare(other)


def tell_apart(one: str, other: str) -> bool:
    """Whether two digests that differ were made of different rows. Not where one of them names its encoder, and the
    other names another one or none."""
    return not same_bytes(one, other) and one.partition(";")[2] == other.partition(";")[2]
