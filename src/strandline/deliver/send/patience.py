"""How many chunks are still tried where a destination is in trouble. A chunk that is not tried is given back unsent.

A destination that hangs or says "later" would else be met once per chunk, and every meeting holds a core for as long as
an answer may take. What was met is remembered by the worker process for the whole job: its next tasks meet the same
destination.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

IN_A_ROW_MAX = 3
"""Lanes that are in trouble one after the other, with nothing landed in between: then it is the destination."""
_JOBS_MAX = 16
_by_job: OrderedDict[str, Patience] = OrderedDict()


class Patience:
    """Of one job in one process."""

    def __init__(self, *, lanes: int) -> None:
        self._in_a_row_max = 1 if lanes == 1 else IN_A_ROW_MAX
        self._in_a_row = 0
        self._troubled: set[Hashable] = set()
        self._over = False

    def is_over(self) -> bool:
        """Whether nothing more is sent."""
        return self._over

    def tries(self, lane: Hashable) -> bool:
        """Whether another chunk of the lane is sent. A lane in trouble does not hold back other lanes."""
        return not self._over and lane not in self._troubled

    def landed(self) -> None:
        self._in_a_row = 0

    def trouble(self, lane: Hashable, *, asked_to_wait: bool = False) -> None:
        """Whoever asks to be left alone for some time means all lanes."""
        self._troubled.add(lane)
        self._in_a_row += 1
        self._over |= asked_to_wait or self._in_a_row >= self._in_a_row_max


def patience_of(job: str, *, lanes: int) -> Patience:
    """The same for all tasks of a job that this process runs."""
    found = _by_job.get(job)
    if found is None:
        found = _by_job[job] = Patience(lanes=lanes)
        while len(_by_job) > _JOBS_MAX:
            _by_job.popitem(last=False)
    return found
