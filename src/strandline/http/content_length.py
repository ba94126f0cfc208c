"""What a request says of the size of its body."""

from __future__ import annotations

from strandline.core.text.whole_number import whole_number


def exceeds(content_length: str | None, bytes_max: int) -> bool:
    """Also for a number that has more digits than fit into 64 bits. False if nothing is said, or no number."""
    if content_length is None or not (content_length.isascii() and content_length.isdigit()):
        return False
    size = whole_number(content_length)
    return size is None or size > bytes_max
