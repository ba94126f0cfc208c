"""What to do with chunks that a sink refused for good, as a function over values.

A chunk of many rows is split, so that the rest of it flows; a row that is refused by itself is set aside. A refused
chunk holds at least one bad row, so as many refused chunks as rows may be set aside are enough to see that it is not
the rows that are bad: then the sink stops instead, and nothing is split or set aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.core.delivery_types import Chunk, IntentId

REPLAY_PARTITION = "~replay"
"""The lane of rows that are sent again to a sink that keeps marks. An encoded partition has a `=`, or is empty."""


@dataclass(frozen=True, slots=True)
class Halves:
    """Where a chunk that was refused can be split."""

    middle: int
    """The last number of the first part."""
    before: int
    """Rows of the chunk up to there, those that are withheld too."""


@dataclass(frozen=True, slots=True)
class Single:
    """The one row of a chunk that was refused."""

    number: int
    content: bytes | None
    """As `content.packed` made it; None where nobody asked for it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    chunk: Chunk
    intent: IntentId
    why: str
    withheld: int
    found: Halves | Single


@dataclass(frozen=True, slots=True)
class Standing:
    """How a sink has fared with the rows that it was offered."""

    set_aside: Mapping[IntentId, int]
    """Rows in quarantine, of each open intent."""
    since_landing: int
    """Rows in quarantine that came after everything that the sink has ever taken."""
    takes_others: bool
    """Whether it took anything of these intents."""


@dataclass(frozen=True, slots=True)
class Steps:
    split: tuple[Refusal, ...]
    set_aside: tuple[Refusal, ...]
    again: tuple[Refusal, ...]
    """Single rows whose content has yet to be brought back."""


@dataclass(frozen=True, slots=True)
class TooMany:
    refused: int
    set_aside: int
    takes_others: bool
    why: str
    """What the sink said to one of them."""


def decide(refusals: Sequence[Refusal], standing: Standing, rows_max: int) -> Steps | TooMany:
    """Of all intents that are finished together. The bound is for each of them; where the sink takes nothing at all, it
    is for all of them and those before: else a sink that refuses everything would be brought a lake in small bits."""
    if not refusals:
        return Steps((), (), ())
    for intent, refused in Counter(r.intent for r in refusals).items():
        before = standing.set_aside.get(intent, 0)
        if refused + before > rows_max:
            why = next(r.why for r in refusals if r.intent == intent)
            return TooMany(refused, before, standing.takes_others, why)
    if not standing.takes_others and len(refusals) + standing.since_landing > rows_max:
        return TooMany(len(refusals), standing.since_landing, False, refusals[0].why)
    singles = [r for r in refusals if isinstance(r.found, Single)]
    return Steps(
        tuple(r for r in refusals if isinstance(r.found, Halves)),
        tuple(r for r in singles if isinstance(r.found, Single) and r.found.content is not None),
        tuple(r for r in singles if isinstance(r.found, Single) and r.found.content is None),
    )
