"""The key that signs the cookies of browsers, and what is made with it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from strandline.core.errors import ConfigError
from strandline.core.secrets import read_secret
from strandline.core.settings.lake_config import LakeConfig
from strandline.storage.durable import whole_file

KEY_FILE = "serve.key"  # in the lake's folder
_KEY_BYTES = 32
_ID_BYTES = 32
_VERSION = "v2"


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """What a cookie says. Its signature covers all of it, so nobody can move the log-in or the expiry."""

    session: str  # the session's id
    begun_at: datetime  # when the browser logged in
    expires_at: datetime  # unless the session is renewed before


@dataclass(frozen=True)
class SessionKeys:
    key: bytes

    def new_id(self) -> str:
        return secrets.token_urlsafe(_ID_BYTES)

    def cookie(self, said: SessionCookie) -> str:
        """The value of the cookie: id, log-in, expiry, signature."""
        signed = f"{said.session}.{int(said.begun_at.timestamp())}.{int(said.expires_at.timestamp())}"
        return f"{_VERSION}.{signed}.{self._sign(_VERSION, signed)}"

    def read_cookie(self, value: str, now: datetime) -> SessionCookie | None:
        """None for a cookie that is forged, damaged or expired."""
        version, _, rest = value.partition(".")
        signed, _, signature = rest.rpartition(".")
        good = self._sign(_VERSION, signed)
        is_signed = hmac.compare_digest(signature.encode("utf-8", "replace"), good.encode())
        if version != _VERSION or not signed or not is_signed:
            return None
        session, begun, until = signed.rsplit(".", 2)
        said = SessionCookie(session, datetime.fromtimestamp(int(begun), UTC), datetime.fromtimestamp(int(until), UTC))
        return said if now < said.expires_at else None

    def csrf_token(self, session: str) -> str:
        return self._sign("csrf", session)

    def _sign(self, purpose: str, text: str) -> str:
        mac = hmac.new(self.key, f"{purpose}:{text}".encode("utf-8", "replace"), hashlib.sha256)
        return base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")


def named_session(value: str) -> str:
    """The id that a cookie names, valid or not. It stays the same when the cookie is renewed."""
    return value.split(".", 2)[1] if value.count(".") > 1 else value


def load_session_keys(config: LakeConfig) -> SessionKeys:
    """From the setting, or from the file in the lake's folder, which is made if it is missing. Raises ConfigError."""
    source = config.settings.serve.session_key
    if source is None:
        return SessionKeys(_own_key(config.home / KEY_FILE))
    if not source.startswith(("env:", "file:")):
        raise ConfigError("serve.session_key is a secret", hint="Name where it is: env:NAME or file:PATH.")
    text = read_secret(source)
    if len(text) < _KEY_BYTES:
        raise ConfigError(
            f"serve.session_key is shorter than {_KEY_BYTES} characters",
            hint=f"Use at least {_KEY_BYTES} random bytes, for example from `openssl rand -hex {_KEY_BYTES}`.",
        )
    return SessionKeys(hashlib.sha256(text.encode()).digest())


def _own_key(path: Path) -> bytes:
    """Two processes may make it at the same time: the first one's file stays."""
    if not path.exists():
        with suppress(FileExistsError), whole_file(path, replace=False) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_bytes(_KEY_BYTES))
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"others can read {path}", hint=f"It signs cookies: delete it, or `chmod 600 {path}`.")
    found = path.read_bytes()
    if len(found) != _KEY_BYTES:
        raise ConfigError(f"{path} is damaged", hint="Delete it; browsers have to log in again then.")
    return found
