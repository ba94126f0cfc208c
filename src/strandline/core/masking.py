"""Masks secrets that this process has read, so that no message repeats one.

A server's error may quote a secret: a catalog the credential, an object store the key. Code that resolves a secret
notes it here, and every error of ours masks noted secrets.
"""

from __future__ import annotations

from urllib.parse import quote, quote_plus

MASK = "***"
_CHARS_MIN = 8  # anything shorter would match ordinary words
_NOTED_MAX = 1000

_noted: dict[str, None] = {}


def note_secret(value: str) -> None:
    """Notes the value and its parts, as in `client:secret` or `Bearer token`."""
    for part in dict.fromkeys((value, *value.split(":"), *value.split(" "))):
        for spelled in (part, quote(part, safe=""), quote_plus(part)):
            if len(spelled) >= _CHARS_MIN and spelled not in _noted:
                if len(_noted) >= _NOTED_MAX:  # drop the oldest: a long-running process may rotate its secrets
                    del _noted[next(iter(_noted))]
                _noted[spelled] = None


def masked(text: str) -> str:
    for secret in sorted(_noted, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, MASK)
    return text
