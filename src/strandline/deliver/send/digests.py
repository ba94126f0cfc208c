"""Digests of what was delivered: `sha256:<hex>`, and after a `;` the encoder that made the bytes, with its version.

If a sink keeps only the digest of a body, its rows cannot be compared any more once another version of a library
encodes them differently, or the sink was set up again with another format: then a different digest proves nothing.
"""

from __future__ import annotations


def made_by(digest: str, encoder: str) -> str:
    return f"{digest};{encoder}"


def bare(digest: str) -> str:
    return digest.partition(";")[0]


def same_bytes(one: str, other: str) -> bool:
    return bare(one) == bare(other)


def prove_different(one: str, other: str) -> bool:
    """Whether the digests prove different rows: they differ, and both name the same encoder, or none."""
    return not same_bytes(one, other) and one.partition(";")[2] == other.partition(";")[2]
