"""What is wrong with the rows of a range at a destination, in words. For kinds that can tell which rows they hold."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.text.wording import agreeing, part, plural
from strandline.core.types import SeqRange

NAMED_MAX = 5


def describe_rows(rows: SeqRange, given: int, missing: Sequence[int], twice: Sequence[int], foreign: int) -> str:
    """What is wrong with the rows of a range; empty if nothing is."""
    problems = []
    if missing:
        problems.append(f"{part(len(missing), given, 'row', 'is')} missing: {_named(missing)}")
    if twice:
        problems.append(f"{plural(len(twice), 'sequence number', 'is')} there more than once: {_named(twice)}")
    if foreign:
        problems.append(
            f"{plural(foreign, 'row')} with a sequence number in {rows} {agreeing(foreign, 'was')} not delivered"
        )
    return "; ".join(problems)


def _named(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - NAMED_MAX} more" if len(numbers) > NAMED_MAX else ""
    return ", ".join(map(str, numbers[:NAMED_MAX])) + more
