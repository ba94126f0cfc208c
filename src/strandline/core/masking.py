"""Secrets that this process has read, so that no message repeats one.

A server may answer with what it was told: the credential in a catalog's refusal, a key in a store's. Whoever resolves a
secret notes it here, and every error of ours masks what was noted.
"""

from __future__ import annotations

from urllib.parse import quote, quote_plus

MASK = "***"
_CHARS_MIN = 8
"""Anything shorter would be found in ordinary words, too."""
_NOTED_MAX = 1000

_noted: dict[str, None] = {}


def note_secret(value: str) -> None:
    """The value, and the parts of one that has several: `client:secret`, `Bearer token`."""
    for part in dict.fromkeys((value, *value.split(":"), *value.split(" "))):
        for spelled in (part, quote(part, safe=""), quote_plus(part)):
            if len(spelled) >= _CHARS_MIN and spelled not in _noted:
                if len(_noted) >= _NOTED_MAX:  # the oldest goes: a process that rotates secrets runs for long
                    del _noted[next(iter(_noted))]
                _noted[spelled] = None


def masked(text: str) -> str:
    """The text without any secret that was noted."""
    for secret in sorted(_noted, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, MASK)
    return text
