"""How many chunks are still tried while a destination is in trouble. The others are given back unsent.

Otherwise every chunk would meet a destination that hangs or says "later", and each attempt holds a core for as long as
a response may take. The worker process remembers the trouble for all tasks of the job.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

# So many lanes in a row in trouble, with nothing landed in between: then the destination is to blame.
IN_A_ROW_MAX = 3
_JOBS_MAX = 16


class Patience:
    """The state of one job in one process."""

    def __init__(self, *, lanes: int) -> None:
        self._in_a_row_max = 1 if lanes == 1 else IN_A_ROW_MAX
        self._in_a_row = 0
        self._troubled: set[Hashable] = set()
        self._over = False

    def is_over(self) -> bool:
        return self._over

    def tries(self, lane: Hashable) -> bool:
        """Whether another chunk of the lane is sent. A lane in trouble does not hold back other lanes."""
        return not self._over and lane not in self._troubled

    def landed(self) -> None:
        self._in_a_row = 0

    def trouble(self, lane: Hashable, *, asked_to_wait: bool = False) -> None:
        """A destination that asks for a pause means all lanes."""
        self._troubled.add(lane)
        self._in_a_row += 1
        self._over |= asked_to_wait or self._in_a_row >= self._in_a_row_max


@lru_cache(_JOBS_MAX)
def patience_of(job: str, *, lanes: int) -> Patience:
    """Shared by all tasks of a job in this process."""
    return Patience(lanes=lanes)
