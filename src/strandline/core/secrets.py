"""Secrets that settings and options name: `env:NAME`, or `file:PATH` where only a secret is allowed. They are read when
they are needed, and never stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from strandline.core.errors import ConfigError
from strandline.core.text.masking import note_password, note_secret


def resolve_secret(value: str | None) -> str | None:
    """The value itself, or what `env:NAME` holds right now. It may be an address: a password in it is noted."""
    if value is None or not value.startswith("env:"):
        note_password(value or "")
        return value
    name = value.removeprefix("env:")
    found = os.environ.get(name)
    if found is None:
        raise ConfigError(f"the environment variable {name} is not set", hint=f"A setting says env:{name}.")
    note_password(found)
    return found


def resolve_key(value: str | None) -> str | None:
    """A setting that is a secret, resolved; no error repeats it."""
    found = resolve_secret(value)
    if found:
        note_secret(found)
    return found


_OPEN_OPTIONS = ("warehouse", "uri", "prefix", "scope", "oauth2-server-uri")
"""Options of a REST client that are no secrets. Any other option that comes from the environment, or whose name sounds
like a secret, is one."""
_SOUNDS_SECRET = re.compile(r"(?i)token|credential|secret|password|key|auth|cookie")


def resolve_catalog_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options of the REST client, with `env:NAME` resolved."""
    found = {key: resolve_secret(value) or "" for key, value in options.items()}
    for key, value in found.items():
        if key not in _OPEN_OPTIONS and (options[key].startswith("env:") or _SOUNDS_SECRET.search(key)):
            note_secret(value)
    return found


def may_hold_secret(address: str) -> bool:
    """Whether a URL has a user, a password or a query. It is stored and shown, so it must have none."""
    parsed = urlsplit(address)
    return parsed.username is not None or parsed.password is not None or bool(parsed.query)


_SECRET_BYTES_MAX = 64 << 10


def read_secret(source: str) -> str:
    """What `env:NAME` or `file:PATH` holds right now. A file can be replaced while a process runs; its variables
    cannot. Nothing that is raised repeats what was read."""
    if not source.startswith("file:"):
        found = resolve_secret(source)
        if not found:
            raise ConfigError(f"{source} is empty", hint="It must contain a secret.")
        note_secret(found)
        return found
    path = Path(source.removeprefix("file:")).expanduser()
    hint = "A secret says file:PATH: an absolute path of a file that holds the secret and nothing else."
    if not path.is_absolute():
        raise ConfigError(f"{path} is not an absolute path", hint=hint)
    try:
        with path.open("rb") as file:
            content = file.read(_SECRET_BYTES_MAX + 1)
        text = content.decode("utf-8").strip()
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}", hint=hint) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text", hint=hint) from None
    if not text or len(content) > _SECRET_BYTES_MAX:
        raise ConfigError(f"{path} is empty, or too long for a secret", hint=hint)
    note_secret(text)
    return text
