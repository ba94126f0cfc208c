"""Groups files into the parts that one task reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

PART_BYTES = 32 << 20
FILE_BYTES = 1 << 20
"""What opening a file costs, in bytes that could be read meanwhile."""


class Sized(Protocol):
    @property
    def bytes(self) -> int: ...


AnyFile = TypeVar("AnyFile", bound=Sized)


def pack(files: Sequence[AnyFile], *, part_bytes: int = PART_BYTES) -> list[list[AnyFile]]:
    """Neighbouring files, up to this size together; a larger file is a part of its own."""
    parts: list[list[AnyFile]] = []
    left = 0
    for file in files:
        weight = file.bytes + FILE_BYTES
        if not parts or weight > left:
            parts.append([])
            left = part_bytes
        parts[-1].append(file)
        left -= weight
    return parts
