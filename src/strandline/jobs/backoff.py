"""How long to wait before something that failed is tried again."""

from __future__ import annotations

_DOUBLINGS_MAX = 16


def backoff_seconds(failures: int, chance: float, *, longest: float, first: float = 1.0) -> float:
    """Twice as long after each failure, up to a bound; `chance`, in 0..1, spreads those that failed together over the
    second half of the time."""
    return min(longest, first * 2.0 ** min(failures, _DOUBLINGS_MAX)) * (0.5 + chance / 2)
