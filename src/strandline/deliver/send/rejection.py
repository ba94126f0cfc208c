"""Decides what to do with chunks that a sink refused for good. Pure.

A chunk of many rows is split, so that the good rows flow; a row that is refused alone goes to quarantine. A refused
chunk holds at least one bad row. So if more chunks are refused than rows may be quarantined, the rows are not to blame:
the sink stops, and nothing is split or quarantined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.core.delivery_types import Chunk, IntentId

# The lane of replayed rows at a sink that keeps watermarks. An encoded partition has a `=`, or is empty.
REPLAY_PARTITION = "~replay"


@dataclass(frozen=True, slots=True)
class Halves:
    """Where a refused chunk can be split."""

    middle: int  # the last sequence number of the first part
    before: int  # rows of the chunk up to there, withheld ones included


@dataclass(frozen=True, slots=True)
class Single:
    """The only row of a refused chunk."""

    number: int
    content: bytes | None  # as `content.packed` made it; None if it was not asked for


@dataclass(frozen=True, slots=True)
class ChunkRefusal:
    chunk: Chunk
    intent: IntentId
    why: str
    withheld: int
    found: Halves | Single


@dataclass(frozen=True, slots=True)
class RefusalHistory:
    """What the sink did with the rows that it was offered."""

    set_aside: Mapping[IntentId, int]  # rows in quarantine, per open intent
    since_landing: int  # rows in quarantine above everything that the sink has ever taken
    takes_others: bool  # whether it took anything of these intents


@dataclass(frozen=True, slots=True)
class Steps:
    split: tuple[ChunkRefusal, ...]
    set_aside: tuple[ChunkRefusal, ...]
    again: tuple[ChunkRefusal, ...]  # single rows whose content is still to be fetched


@dataclass(frozen=True, slots=True)
class TooMany:
    refused: int
    set_aside: int
    takes_others: bool
    why: str  # what the sink said to one of them


def decide(refusals: Sequence[ChunkRefusal], history: RefusalHistory, rows_max: int) -> Steps | TooMany:
    """Decides for all intents that are finished together. `rows_max` bounds each of them, and all of them if the sink
    accepts nothing: such a sink would quarantine a whole lake in small steps."""
    if not refusals:
        return Steps((), (), ())
    for intent, refused in Counter(r.intent for r in refusals).items():
        before = history.set_aside.get(intent, 0)
        if refused + before > rows_max:
            why = next(r.why for r in refusals if r.intent == intent)
            return TooMany(refused, before, history.takes_others, why)
    if not history.takes_others and len(refusals) + history.since_landing > rows_max:
        return TooMany(len(refusals), history.since_landing, False, refusals[0].why)
    return Steps(
        tuple(r for r in refusals if isinstance(r.found, Halves)),
        tuple(r for r in refusals if isinstance(r.found, Single) and r.found.content is not None),
        tuple(r for r in refusals if isinstance(r.found, Single) and r.found.content is None),
    )
