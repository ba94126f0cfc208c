"""A TLS listener that knows its connections from the moment they are accepted.

The event loop's own listener reports a connection only after its handshake, for which it waits a minute. Clients that
connect and stay silent would not count as connections at all.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

_ACCEPT_AGAIN_SECONDS = 1.0


class Handshakes:
    """Handshakes under way, with their start times. Used from one event loop only."""

    def __init__(self) -> None:
        self._since: dict[asyncio.Task[None], float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def begin(self, task: asyncio.Task[None]) -> None:
        self._since[task] = time.monotonic()
        task.add_done_callback(self.end)

    def end(self, task: asyncio.Task[None]) -> None:
        self._since.pop(task, None)

    def oldest(self, *, but: object) -> tuple[float, Callable[[], object]] | None:
        """When the oldest other handshake began, and the function that closes its connection; None if there is none."""
        others = (task for task in self._since if task is not but)
        found = next(others, None)  # dicts keep the order of insertion
        return None if found is None else (self._since[found], found.cancel)

    def close(self) -> None:
        for task in list(self._since):
            task.cancel()


@dataclass
class TlsListener:
    """Implements what uvicorn needs of a server, from `start` to `close`. `new_protocol` and `make_room` get the task
    of the new connection's handshake."""

    listening: Any
    context: ssl.SSLContext
    new_protocol: Callable[[asyncio.Task[None]], asyncio.Protocol]
    handshakes: Handshakes
    make_room: Callable[[asyncio.Task[None]], None]
    seconds_max: float
    _accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
        self.handshakes.close()

    async def wait_closed(self) -> None:
        if self._accepting is not None:
            await asyncio.gather(self._accepting, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self.listening)
            except OSError as e:  # for example, no file descriptors are left
                log.warning("a connection could not be accepted: %s", e)
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                continue
            task = loop.create_task(self._shake_hands(connection))
            self.handshakes.begin(task)
            # the task must have started before anybody cancels it: only then does it close its connection
            await asyncio.sleep(0)
            self.make_room(task)

    async def _shake_hands(self, connection: Any) -> None:
        this = asyncio.current_task()
        if this is None:
            raise RuntimeError("a handshake is a task")
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self.new_protocol(this),
                connection,
                ssl=self.context,
                ssl_handshake_timeout=self.seconds_max,
            )
        except OSError as e:  # includes TLS errors and the timeout
            log.debug("a TLS handshake failed: %s", e)
        finally:
            self.handshakes.end(this)
