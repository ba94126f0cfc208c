"""Names of batches of received bodies.

When a batch is divided or replayed, its bodies go into parts, whose names extend its own: `received-….0`,
`received-….1`. So the names alone show whether two batches can share a body, even to a restored ledger.
"""

from __future__ import annotations

import re
from uuid import uuid4

from strandline.core.text.bounded_text import BATCH_ID_BYTES_MAX

_NAME = re.compile(r"received-[0-9a-f]{32}(\.[01])*")


def new_name() -> str:
    return f"received-{uuid4().hex}"


def is_received(batch_id: str) -> bool:
    """Whether a receiver may have made the batch. Other clients may also use ids that begin with `received-`."""
    return _NAME.fullmatch(batch_id) is not None


def part_name(name: str, part: int) -> str:
    """The name of a part. The length is bounded: a body that was replayed hundreds of times gets a new name."""
    extended = f"{name}.{part}"
    return extended if len(extended) <= BATCH_ID_BYTES_MAX else new_name()


def can_share_rows(one: str, other: str) -> bool:
    """Whether they are the same batch, or one is a part of the other."""
    if one == other:
        return True
    long, short = (one, other) if len(one) > len(other) else (other, one)
    return long.startswith(f"{short}.") and _NAME.fullmatch(long) is not None


def enclosing_batches(name: str) -> list[str]:
    """The batches that this one is a part of, largest first."""
    if _NAME.fullmatch(name) is None:
        return []
    first, *steps = name.split(".")
    return [".".join((first, *steps[:n])) for n in range(len(steps))]
