"""Limits how many connections there may be, and how long one may stay silent.

uvicorn closes a connection that is idle after an answer. It waits forever for the first byte of a new connection, for
the rest of an incomplete head, for the rest of a body that was answered before it was read, and for a client to take
its answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from strandline.http.limits import HttpLimits
from strandline.http.tls_handshakes import Handshakes

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
else:
    Base = object

HEAD_BYTES_MAX = 64 << 10
UNREAD_SECONDS_MAX = 120.0  # a client that takes nothing of its answer for so long is disconnected
_TAKEN_BYTES_MIN = 64 << 10  # a client that takes less in that time counts as silent


def guard(config: uvicorn.Config, handshakes: Handshakes, limits: HttpLimits) -> None:
    """`config` must be loaded. Connections whose TLS handshake is under way count, too."""
    bases: Any = (Guarded, config.http_protocol_class)
    config.http_protocol_class = type("GuardedProtocol", bases, {"handshakes": handshakes, "limits": limits})


class Guarded(Base):
    """Mixed into uvicorn's protocol: `guard` gives it its base and its self.limits."""

    handshakes: Handshakes
    limits: HttpLimits

    _timer: asyncio.TimerHandle | None = None
    _head_bytes: int | None = 0  # bytes of an incomplete head; None while nothing, or a body, is read
    handshake: asyncio.Task[None] | None = None  # the handshake of this connection; None without TLS
    # `time.monotonic`, because uvloop's clock counts milliseconds: too coarse to find the longest idle one
    idle_since = 0.0
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = time.monotonic()
        if self.handshake is not None:  # it was counted, and made room, when its handshake began
            self.handshakes.end(self.handshake)
        elif len(self.connections) + len(self.handshakes) > self.limits.connections_max:
            close_longest_idle(self.connections, self.handshakes, self, self.transport.abort)
        self._start_timer()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def data_received(self, data: bytes) -> None:
        if self._timer is None and self.is_idle:
            self._start_timer()
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX + len(data):  # the last piece may contain a body, too
                self.transport.abort()
                return
        super().data_received(data)
        if not self.is_idle:
            self._stop_timer()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.idle_since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_unread_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread_timer()

    def _start_unread_timer(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS_MAX, self._check_taken, unread)

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _check_taken(self, unread_before: int) -> None:
        """Nothing is written meanwhile, so what is unread only shrinks."""
        if unread_before - self.transport.get_write_buffer_size() < _TAKEN_BYTES_MIN:
            self._unread_timer = None
            self.transport.abort()
        else:
            self._start_unread_timer()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.head_seconds_max, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self.is_idle and not self.transport.is_closing():
            self.transport.abort()


def close_longest_idle(
    connections: Iterable[Any], handshakes: Handshakes, new: object, close_new: Callable[[], object]
) -> None:
    """Closes the connection that is idle longest, whose client reconnects when needed; the new one if all are busy."""
    idle = [(c.idle_since, c.transport.abort) for c in connections if c is not new and c.is_idle]
    if (oldest := handshakes.oldest(but=new)) is not None:
        idle.append(oldest)
    _, close = min(idle, key=lambda one: one[0], default=(0.0, close_new))
    close()
