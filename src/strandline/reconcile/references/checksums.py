"""Checks Hadoop's checksums: its local file system writes `.NAME.crc` beside NAME, one CRC-32 for every 512 bytes.

A manifest has no checksum of its own. Workers import this module, so it uses the standard library only.
"""

from __future__ import annotations

import os
import struct
import zlib

_MAGIC = b"crc\0"
_HEAD = struct.Struct(">4sI")
_CHUNK_BYTES_MAX = 1 << 24


def damage(path: str, content: bytes) -> str | None:
    """What is wrong with a local file by its checksums. None if they agree, or if there are none in a known format."""
    folder, name = os.path.split(path)
    try:
        with open(os.path.join(folder, f".{name}.crc"), "rb") as file:
            sums = file.read()
    except OSError:
        return None
    if len(sums) < _HEAD.size:
        return None
    magic, chunk_bytes = _HEAD.unpack_from(sums)
    if magic != _MAGIC or not 0 < chunk_bytes <= _CHUNK_BYTES_MAX:
        return None
    view = memoryview(content)
    computed = b"".join(
        zlib.crc32(view[at : at + chunk_bytes]).to_bytes(4, "big") for at in range(0, len(content), chunk_bytes)
    )
    return None if computed == sums[_HEAD.size :] else f"its content does not have the checksums in .{name}.crc"
