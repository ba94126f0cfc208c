"""Names of batches of received bodies.

A batch that is divided, or replayed, has its bodies in parts, which are named after it: `received-….0`, `received-….1`.
So the names alone tell whether two batches can share a body, also to a ledger that was restored and has forgotten them.
"""

from __future__ import annotations

import re
from uuid import uuid4

from strandline.core.bounded_text import BATCH_ID_BYTES_MAX

_NAME = re.compile(r"received-[0-9a-f]{32}(\.[01])*")


def new_name() -> str:
    return f"received-{uuid4().hex}"


def part_name(name: str, part: int) -> str:
    """A new name altogether for a body that was replayed hundreds of times: names are bounded."""
    made = f"{name}.{part}"
    return made if len(made) <= BATCH_ID_BYTES_MAX else new_name()


def can_share_rows(one: str, other: str) -> bool:
    """Whether they are the same batch, or one is a part of the other."""
    if one == other:
        return True
    long, short = (one, other) if len(one) > len(other) else (other, one)
    return long.startswith(f"{short}.") and _NAME.fullmatch(long) is not None


def wholes_of(name: str) -> list[str]:
    """The batches that this one is a part of, the largest first."""
    if _NAME.fullmatch(name) is None:
        return []
    first, *steps = name.split(".")
    return [".".join((first, *steps[:n])) for n in range(len(steps))]
