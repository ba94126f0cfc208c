"""Waits in tests: until something holds, without a fixed pause."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 60
"""Only distinguishes hanging from slowness: machines stall."""


def eventually(holds: Callable[[], object], seconds_max: float = SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds_max
    while not holds():
        assert time.monotonic() < deadline, f"it did not come to pass within {seconds_max:.0f} s"
        time.sleep(0.01)
