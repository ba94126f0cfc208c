"""Who sends a request: the secret in its header, and a short-lived cache of verified callers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from time import monotonic
from typing import Any, Generic, TypeVar

_V = TypeVar("_V")

# How long a verified caller is cached. Where a cached caller is enough, a token that was revoked in another process can
# still be used for so long.
VERIFIED_SECONDS = 1.0
_CALLERS_MAX = 1024
_SECRET_CHARS_MAX = 1024


def bearer_secret(header: str | None) -> str | None:
    """The secret in an Authorization header; None if it holds none that can be one of ours."""
    scheme, _, secret = (header or "").strip().partition(" ")
    secret = secret.strip()
    return secret if scheme.lower() == "bearer" and 0 < len(secret) <= _SECRET_CHARS_MAX else None


class SharedQuestions(Generic[_V]):
    """Asks each question once, however many callers wait for the same answer. Used from one event loop only."""

    def __init__(self) -> None:
        self._asking: dict[Hashable, asyncio.Task[_V]] = {}

    async def ask(self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, _V]]) -> _V:
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(ask())
            asking.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(asking)

    def _answered(self, key: Hashable, done: asyncio.Task[_V]) -> None:
        if self._asking.get(key) is done:
            del self._asking[key]
        if not done.cancelled():
            done.exception()  # those who wait for it get it; there may be none any more

    def clear(self) -> None:
        """Callers that ask from now on do not get an answer that was requested before."""
        self._asking.clear()


class VerifiedCallers(Generic[_V]):
    """Used from one event loop only, so it needs no locks."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[_V, float]] = OrderedDict()
        self._questions = SharedQuestions[_V | None]()
        self._cleared_at = float("-inf")

    async def find_or_ask(self, key: Hashable, ask: Callable[[], Awaitable[_V | None]]) -> _V | None:
        """A cached caller, or what `ask` returns. However many wait for the same caller, the ledger is asked once."""
        found = self.find(key)
        return found if found is not None else await self._questions.ask(key, lambda: self._ask(key, ask))

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[_V | None]]) -> _V | None:
        asked_at = monotonic()
        found = await ask()
        if found is not None:
            self.keep(key, found, asked_at)
        return found

    def find(self, key: Hashable) -> _V | None:
        found = self._kept.get(key)
        if found is not None and monotonic() - found[1] > VERIFIED_SECONDS:
            del self._kept[key]
            return None
        return None if found is None else found[0]

    def keep(self, key: Hashable, caller: _V, asked_at: float) -> None:
        """`asked_at` is when the ledger was asked, by the monotonic clock: what changed since is not in its answer."""
        if asked_at <= self._cleared_at:
            return
        self._kept.pop(key, None)
        self._kept[key] = (caller, asked_at)
        if len(self._kept) > _CALLERS_MAX:
            self._kept.popitem(last=False)

    def forget(self, caller: _V) -> None:
        for key in [key for key, (kept, _) in self._kept.items() if kept == caller]:
            del self._kept[key]

    def clear(self) -> None:
        """Also drops answers of the ledger that were requested before."""
        self._kept.clear()
        self._questions.clear()
        self._cleared_at = monotonic()
