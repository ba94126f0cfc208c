"""Whole numbers in text that others wrote. `int` also takes digits of other scripts, `isdigit` also superscripts that
`int` refuses, and `int` refuses more than some thousand digits."""

from __future__ import annotations

_DIGITS_MAX = 19


def whole_number(text: str | None) -> int | None:
    """The number that ASCII digits spell; None for any other text, and for more digits than 64 bits need."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text.lstrip("0")) > _DIGITS_MAX:
        return None
    return int(text.lstrip("0") or "0")
