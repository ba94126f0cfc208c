"""Requests to one URL: the URL itself, the token, and complete responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

import httpcore
import httpx

from strandline.core import forward_protocol
from strandline.core.errors import ConfigError, UsageError
from strandline.core.secrets import read_secret
from strandline.deliver.sinks.forward import connections
from strandline.deliver.sinks.forward.connections import ConnectionRules

ANSWER_BYTES_MAX = 1 << 20  # a longer response to a body is cut off, and its connection closed
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9_.-]+|[0-9a-f:.]+")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_ASKED_AGAIN = (401, 403, 404)


# --- the URL ---


@dataclass(frozen=True, slots=True)
class Url:
    """A URL, as it is requested and as it is stored."""

    scheme: str
    host: str  # in lower case, an IPv6 address without its brackets
    port: int
    path: str
    query: str = field(repr=False, default="")  # sent, but neither stored nor shown: people put keys into it

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> bytes:
        return f"{self.scheme}://{self.netloc}".encode()

    @property
    def destination(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path.rstrip('/')}"

    def scrub(self, text: str) -> str:
        """Hides the query and its values, however a server repeats them."""
        values = [value for _, value in parse_qsl(self.query, keep_blank_values=True)]
        raw = [pair.partition("=")[2] for pair in self.query.split("&")]
        return hide(text, [self.query, unquote_plus(self.query), *values, *raw])

    def url(self, under: str = "") -> httpcore.URL:
        """The URL of the place, or of something under it."""
        path = f"{self.path.rstrip('/')}/{under}" if under else self.path
        target = f"{path}?{self.query}" if self.query else path
        return httpcore.URL(
            scheme=self.scheme.encode(), host=self.host.encode(), port=self.port, target=target.encode()
        )


def parse_place(url: str) -> Url:
    """Raises UsageError, which never repeats the input: it may hold a secret."""
    hint = "http://HOST:PORT/v1/datasets/DATASET/rows of a receiver, or any URL that takes a POST."
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise UsageError("option url is not a URL", hint=hint) from None
    if parsed.scheme not in _DEFAULT_PORTS or not parsed.host:
        raise UsageError("option url does not begin with http:// or https:// and a host", hint=hint)
    if parsed.userinfo:
        raise UsageError(
            "option url holds a user or a password, and would be stored with it",
            hint="Leave them out, and name a token: --option token=env:NAME.",
        )
    if parsed.fragment or url.rstrip().endswith("#"):
        raise UsageError("option url has a fragment (#…), which is never sent", hint=hint)
    host = parsed.raw_host.decode("ascii").lower().rstrip(".")
    if not _HOST.fullmatch(host) or (parsed.port is not None and not 1 <= parsed.port <= 65_535):
        raise UsageError("option url has an invalid host or port", hint=hint)
    return Url(
        parsed.scheme,
        host,
        parsed.port or _DEFAULT_PORTS[parsed.scheme],
        parsed.raw_path.partition(b"?")[0].decode("ascii") or "/",
        parsed.query.decode("ascii"),
    )


# --- the token ---


_SECRET_CHARS_MIN = 4  # a shorter text is no secret, and hiding it would remove letters from every word


def hide(text: str, secrets: Iterable[str | None]) -> str:
    for secret in sorted({s for s in secrets if s and len(s) >= _SECRET_CHARS_MIN}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


@dataclass(frozen=True, slots=True)
class BearerToken:
    """The secret, and where it was read from, so that it can be read again after a change."""

    value: str | None = field(repr=False, default=None)
    source: str | None = None  # `env:NAME` or `file:PATH`, as the option says

    def __post_init__(self) -> None:
        if self.value is not None and not _TOKEN.fullmatch(self.value):
            raise UsageError(
                "option token holds characters that a header cannot carry",
                hint="A token is one word of plain characters; check it for a line break or a space.",
            )

    def read_again(self) -> BearerToken | None:
        """The token if it has changed since; None if not."""
        if self.source is None:
            return None
        try:
            found = BearerToken(read_secret(self.source), self.source)
        except (ConfigError, UsageError):
            return None  # this machine does not have it; the driver reads it before the next attempt
        return None if found.value == self.value else found

    def scrub(self, text: str) -> str:
        return text.replace(self.value, "***") if self.value else text


# --- the response ---


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes = b""

    @property
    def from_receiver(self) -> bool:
        return forward_protocol.RECEIVER.lower() in self.headers

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON object of the response; empty if it is none."""
        try:
            parsed = json.loads(self.content) if self.content else None
        except (ValueError, RecursionError):
            return {}
        return parsed if isinstance(parsed, dict) else {}


class NotSent(Exception):
    """Nothing of the request has reached the server."""


class AnswerLost(Exception):
    """The request may have reached the server, and its outcome is unknown."""


class AnswerLate(AnswerLost):
    """The time limit for a response has passed: an immediate retry would wait as long again."""


@dataclass(repr=False)
class Conversation:
    """Requests to one server. Connects on first use, and keeps the connection; it is pickled without."""

    place: Url
    token: BearerToken
    rules: ConnectionRules
    _pool: httpcore.ConnectionPool | None = None

    def __repr__(self) -> str:
        return f"Conversation({self.place.destination})"

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_pool": None}

    def scrub(self, text: str) -> str:
        """Hides the token and the URL's query, in case the server repeats them."""
        return self.token.scrub(self.place.scrub(text))

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            connections.leave_pool(self.rules, self.place.origin, pool)

    def request(
        self,
        method: str,
        under: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        bytes_max: int = ANSWER_BYTES_MAX,
    ) -> HttpAnswer:
        """If the server rejects the token, it is read again once and the request is repeated as it is. Raises
        AddressRefused, NotSent or AnswerLost."""
        answer = self._request(method, under, headers or {}, content, bytes_max)
        if answer.status in _ASKED_AGAIN and (changed := self.token.read_again()) is not None:
            self.token = changed
            answer = self._request(method, under, headers or {}, content, bytes_max)
        return answer

    def _request(
        self, method: str, under: str, headers: Mapping[str, str], content: bytes, bytes_max: int
    ) -> HttpAnswer:
        if self._pool is None:
            self._pool = connections.take_pool(self.rules, self.place.origin)
        sent = {"Host": self.place.netloc, "User-Agent": "strandline", "Accept": "application/json", **headers}
        if self.token.value is not None:
            sent["Authorization"] = f"Bearer {self.token.value}"
        if method == "POST":
            sent["Content-Length"] = str(len(content))
        answer_seconds = self.rules.answer_seconds_max
        limits = {"connect": self.rules.connect_seconds_max, "write": answer_seconds, "read": answer_seconds}
        try:
            with self._pool.stream(
                method,
                self.place.url(under),
                headers=[(name.encode("ascii"), value.encode("ascii")) for name, value in sent.items()],
                content=content or None,
                extensions={"timeout": limits},
            ) as answer:
                return _read(answer, bytes_max)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as e:
            raise NotSent(str(e)) from None
        except (httpcore.LocalProtocolError, httpcore.UnsupportedProtocol):
            # The message would repeat a header, and the token is one.
            raise NotSent("the request cannot be written as HTTP") from None
        except httpcore.TimeoutException as e:
            raise AnswerLate(str(e) or type(e).__name__) from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as e:
            raise AnswerLost(str(e) or type(e).__name__) from None


def _read(answer: httpcore.Response, bytes_max: int) -> HttpAnswer:
    """Reads to the end, so that the connection can be used again; a response that is too long closes it."""
    parts, size = [], 0
    for part in answer.iter_stream():
        parts.append(part)
        size += len(part)
        if size > bytes_max:
            break
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    return HttpAnswer(answer.status, headers, b"".join(parts)[: bytes_max + 1])
