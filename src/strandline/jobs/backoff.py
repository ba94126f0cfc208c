"""How long to wait before a retry."""

from __future__ import annotations

_DOUBLINGS_MAX = 16


def backoff_seconds(failures: int, chance: float, *, longest: float, first: float = 1.0) -> float:
    """Doubles after each failure, up to `longest`. The jitter `chance` (0..1) takes off up to half of it."""
    return min(longest, first * 2.0 ** min(failures, _DOUBLINGS_MAX)) * (0.5 + chance / 2)
