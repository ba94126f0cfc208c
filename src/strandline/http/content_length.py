"""The size of a request's body, according to its Content-Length header."""

from __future__ import annotations

from strandline.core.text.whole_number import whole_number


def exceeds(content_length: str | None, bytes_max: int) -> bool:
    """Whether the header names more than `bytes_max`, even a number of more than 64 bits. False without a valid
    header."""
    if content_length is None or not (content_length.isascii() and content_length.isdigit()):
        return False
    size = whole_number(content_length)
    return size is None or size > bytes_max
