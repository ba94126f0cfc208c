"""Masks secrets in text that leaves the process: logs, errors, answers, and what the ledger stores of them.

Two kinds are masked. A secret that this process has read, because a server's error may quote it: a catalog the
credential, an object store the key. Code that resolves a secret notes it here. And a password where an address or a
connection string has one, whether anybody has noted it or not: `postgresql://user:***@host`, `password=***`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "***"
_CHARS_MIN = 8  # anything shorter would match ordinary words
_NOTED_MAX = 1000

_noted: dict[str, None] = {}

# In an address, up to the last @: people do not escape one in a password. Not a port and its path, and not `PASSWORD`,
# which stands for one in hints. The lengths are bounded, so that the search takes linear time.
_IN_ADDRESS = re.compile(
    r"""(:(?://|\\/\\/)(?!\[)[^\s/?\#:]{0,256}:)(?!\d{1,5}(?:[/?\#\s]|$)|PASSWORD@)((?:(?!://)\S){1,1024})(?=@)"""
)
# In a connection string, or beside its name in JSON or Python. Not `env:NAME`, which only names a variable. A value in
# quotes may hold spaces, and its last quote may be missing.
_IN_PAIR = re.compile(
    r"""(?i)((?:password|passwd|passphrase|pwd(?=["']?\s{0,8}=\s{0,8}[^/\s]))["']?\s{0,8}=\s{0,8}"""
    r"""|(?:password|passwd|passphrase)["']\s{0,8}:\s{0,8}(?=["']))(?!env:|file:|…|\*\*\*(?!\S))"""
    r"""('(?:[^'\\]|\\.)*(?:'|\\?$)|"(?:[^"\\]|\\.)*(?:"|\\?$)|\S+)""",
    re.DOTALL,
)


def note_secret(value: str) -> None:
    """Notes the value and its parts, as in `client:secret` or `Bearer token`."""
    inside = list(_passwords(value))
    for part in dict.fromkeys((value, *inside) if inside else (value, *value.split(":"), *value.split(" "))):
        _note(part)


def note_password(address: str) -> None:
    """Notes the password in an address or a connection string, if it has one, but not the rest of it."""
    for password in _passwords(address):
        _note(password)


def _passwords(text: str) -> Iterator[str]:
    """Without passwords that also occur in the rest of the text, like `postgres`: masking them would spoil every
    message."""
    rest = _without_passwords(text)
    for pattern in (_IN_ADDRESS, _IN_PAIR):
        for found in pattern.finditer(text):
            spelled = dict.fromkeys((found[2], unquote(found[2]), found[2].strip("'\"")))
            yield from (password for password in spelled if password not in rest)


def _note(secret: str) -> None:
    for spelled in (secret, quote(secret, safe=""), quote_plus(secret)):
        if len(spelled) >= _CHARS_MIN and spelled not in _noted:
            if len(_noted) >= _NOTED_MAX:  # drop the oldest: a long-running process may rotate its secrets
                del _noted[next(iter(_noted))]
            _noted[spelled] = None


def masked(text: str) -> str:
    for secret in sorted(_noted, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, MASK)
    return _without_passwords(text)


def _without_passwords(text: str) -> str:
    return _IN_PAIR.sub(rf"\1{MASK}", _IN_ADDRESS.sub(rf"\1{MASK}", text))


def masked_within(value: Any) -> Any:
    """A JSON value with every text in it masked. Not for text that is JSON already: a mask may cut an escape in two."""
    match value:
        case str():
            return masked(value)
        case Mapping():
            return {key: masked_within(one) for key, one in value.items()}
        case list() | tuple():
            return [masked_within(one) for one in value]
    return value
