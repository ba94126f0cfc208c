"""Which idle sink the daemon asks next whether its destination still holds what it acknowledged.

A tick asks nothing if there is nothing to deliver, so it would notice a destination that lost its rows only with the
next new row. The daemon therefore asks one idle sink at a time, each of them rarely. It starts no JVM for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from strandline.core.delivery_types import SinkId, SinkRecord
from strandline.core.errors import StrandlineError
from strandline.deliver.sink_kinds import find_kind


class IdleChecks:
    """The checks of one process. A sink that it sees for the first time counts as just checked, and so does a sink that
    is delivered to: every delivery begins with the same check."""

    def __init__(self, every_seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._every_seconds = every_seconds
        self._clock = clock
        self._checked: dict[SinkId, float] = {}

    def note(self, sink: SinkId) -> None:
        self._checked[sink] = self._clock()

    def next_due(self, idle: Sequence[SinkRecord]) -> SinkRecord | None:
        """The sink whose last check is longest ago, if that is long enough; None if the setting is 0."""
        if not self._every_seconds:
            return None
        candidates = [s for s in idle if _can_be_checked(s)]
        for sink in candidates:
            self._checked.setdefault(sink.id, self._clock())
        oldest = min(candidates, key=lambda s: self._checked[s.id], default=None)
        if oldest is None or self._clock() - self._checked[oldest.id] < self._every_seconds:
            return None
        return oldest


def _can_be_checked(sink: SinkRecord) -> bool:
    try:
        return find_kind(sink.kind).checked_when_idle
    except StrandlineError:  # its package is not installed: delivery reports that
        return False
