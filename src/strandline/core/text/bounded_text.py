"""Text that every ledger can store and index: without U+0000, and no longer than PostgreSQL can index."""

from __future__ import annotations

from strandline.core.errors import UsageError

NAME_BYTES_MAX = 512  # UTF-8; PostgreSQL indexes about 2,700 bytes in all, and some indexes hold several names
BATCH_ID_BYTES_MAX = 1024


def check_text(what: str, text: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Returns the text; `UsageError` if not every ledger can store it."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not text") from None
    if size > bytes_max:
        raise UsageError(f"{what} is longer than {bytes_max:,} bytes")
    if "\0" in text:
        raise UsageError(f"{what} contains the character U+0000, which PostgreSQL cannot store")
    return text
