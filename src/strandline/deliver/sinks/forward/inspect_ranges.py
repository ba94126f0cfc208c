"""Reads ranges back from a receiver, many with one request: each of them may count rows in a table there."""

from __future__ import annotations

from strandline.core.types import SEQ_MAX, Seq, SeqRange
from strandline.deliver.sink import Address, Inspected
from strandline.deliver.sinks.forward.peer import Peer

WINDOW_RANGES_MIN = 64
WINDOW_RANGES_MAX = 1024  # in lengths of the range that was asked for; a receiver returns at most a thousand at once


class ForwardInspector:
    """Called range by range, it requests a window of ranges, twice as many each time: so little is read in vain for a
    task with few ranges, and few requests are made for one with many."""

    asks_only = True

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._ranges = WINDOW_RANGES_MIN
        self._address: Address | None = None
        self._window: SeqRange | None = None
        self._known: dict[SeqRange, Inspected] = {}

    def __repr__(self) -> str:
        return f"ForwardInspector({self._peer!r})"

    def close(self) -> None:
        self._peer.close()

    def inspect(self, address: Address, rows: SeqRange) -> Inspected:
        if not self._peer.is_receiver:
            return Inspected(None, None)
        if not self._has_looked(address, rows):
            self._look(address, rows)
        return self._known.get(rows) or Inspected(None, None, f"the receiver does not know of {rows}")

    def _has_looked(self, address: Address, rows: SeqRange) -> bool:
        window = self._window
        return self._address == address and window is not None and window.lo <= rows.lo and rows.hi <= window.hi

    def _look(self, address: Address, rows: SeqRange) -> None:
        hi = min(rows.lo + len(rows) * self._ranges - 1, SEQ_MAX)
        self._known, following = self._peer.inspect(address, SeqRange(rows.lo, Seq(hi)))
        if following is not None:
            hi = max(following - 1, rows.hi)
        self._address, self._window = address, SeqRange(rows.lo, Seq(hi))
        self._ranges = min(self._ranges * 2, WINDOW_RANGES_MAX)
