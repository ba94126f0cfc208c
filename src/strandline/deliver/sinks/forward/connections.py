"""Connections to checked addresses, limited in time, and kept from one sender to the next.

A name is resolved once, its addresses are checked, and exactly those are connected to: a DNS answer that changes
between the check and the connection has no effect.
"""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpcore

from strandline.core.calling_off import events_of_this_thread, is_called_off
from strandline.deliver.sinks.forward.address import AllowList, refusal

_LOOKS_SECONDS = 0.5
KEPT_SECONDS_MAX = 30.0
KEPT_MAX = 8  # pools of this process that wait for their next sender


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """How a server is reached. It is pickled with a sender."""

    allow: AllowList
    connect_seconds_max: float
    answer_seconds_max: float
    ca: str | None = None  # certificates to trust in place of the system's, as PEM


# --- connecting ---


class CheckedBackend(httpcore.NetworkBackend):
    def __init__(self, allow: AllowList) -> None:
        self._allow = allow

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as e:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {e.strerror or e}") from None
        addresses = [ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found]
        permitted = [f for f, a in zip(found, addresses, strict=True) if self._allow.permits(host, a)]
        if not permitted:
            raise refusal(host, addresses)
        until = None if timeout is None else time.monotonic() + timeout
        last: httpcore.NetworkError | httpcore.TimeoutException = httpcore.ConnectError(f"{host} has no address")
        for n, (family, kind, protocol, _, sockaddr) in enumerate(permitted):
            # Each address gets its share of the remaining time: one that never answers does not take the others' time.
            share = None if until is None else max(0.05, (until - time.monotonic()) / (len(permitted) - n))
            try:
                return _connect(family, kind, protocol, sockaddr, share)
            except TimeoutError:
                last = httpcore.ConnectTimeout(f"no connection to {host} within {timeout:g} s")
            except OSError as e:
                last = httpcore.ConnectError(f"no connection to {host}: {e.strerror or e}")
        raise last


def _connect(family: int, kind: int, protocol: int, sockaddr: Any, seconds: float | None) -> Stream:
    made = socket.socket(family, kind, protocol)
    try:
        made.settimeout(seconds)
        made.connect(sockaddr)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        made.close()
        raise
    return Stream(made)


class Stream(httpcore.NetworkStream):
    """The time limits are for a whole request and a whole response: single bytes do not extend them."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._answer_by: float | None = None

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            if timeout is not None:
                self._answer_by = self._answer_by or time.monotonic() + timeout
                self._wait_until_readable(self._answer_by)
                self._socket.settimeout(_left(self._answer_by))
            return self._socket.recv(max_bytes)
        except TimeoutError:
            raise httpcore.ReadTimeout(f"no whole answer within {timeout:g} s") from None
        except OSError as e:
            raise httpcore.ReadError(e.strerror or str(e)) from None

    def _wait_until_readable(self, until: float) -> None:
        """Waits until data arrives. Raises ReadTimeout if the work is called off; on executors, Spark ends the task."""
        if not events_of_this_thread() or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return
        waiting = select.poll()
        waiting.register(self._socket.fileno(), select.POLLIN)
        while not waiting.poll(1000 * min(_left(until), _LOOKS_SECONDS)):
            if is_called_off():
                raise httpcore.ReadTimeout("the work was called off while it waited for an answer")

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._answer_by = None
        until = None if timeout is None else time.monotonic() + timeout
        left = memoryview(buffer)
        try:
            while left:
                self._socket.settimeout(None if until is None else _left(until))
                left = left[self._socket.send(left) :]
        except TimeoutError:
            raise httpcore.WriteTimeout(f"the body was not taken within {timeout:g} s") from None
        except OSError as e:
            raise httpcore.WriteError(e.strerror or str(e)) from None

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        """Uses the name from the URL: the certificate must be for it, wherever the connection leads."""
        try:
            self._socket.settimeout(timeout)
            return Stream(ssl_context.wrap_socket(self._socket, server_hostname=server_hostname))
        except TimeoutError:
            self.close()
            raise httpcore.ConnectTimeout(f"no TLS within {timeout:g} s") from None
        except OSError as e:
            self.close()
            raise httpcore.ConnectError(f"no TLS with {server_hostname}: {_tls_words(e)}") from None

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "ssl_object":
                return self._socket if isinstance(self._socket, ssl.SSLSocket) else None
            case "is_readable":  # the server has closed it: an idle connection has nothing to read
                if self._socket.fileno() < 0:
                    return True
                waiting = select.poll()
                waiting.register(self._socket.fileno(), select.POLLIN)
                return bool(waiting.poll(0))
            case "server_addr":
                return self._socket.getpeername()
        return None


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _tls_words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return (error.reason if isinstance(error, ssl.SSLError) else None) or error.strerror or str(error)


# --- keeping connections ---

_kept: list[tuple[int, ConnectionRules, bytes, httpcore.ConnectionPool]] = []
_lock = threading.Lock()


def take_pool(rules: ConnectionRules, origin: bytes) -> httpcore.ConnectionPool:
    """A pool that an earlier sender of this process left, or a new one. Each task has its own sender, and a task is
    short: without this, every chunk would cost a connection and a handshake."""
    with _lock:
        for n, (process, its_rules, its_origin, pool) in enumerate(_kept):
            if (process, its_rules, its_origin) == (os.getpid(), rules, origin):
                del _kept[n]
                return pool
    return httpcore.ConnectionPool(
        ssl_context=ssl.create_default_context(cadata=rules.ca) if origin.startswith(b"https:") else None,
        max_connections=1,
        keepalive_expiry=KEPT_SECONDS_MAX,
        network_backend=CheckedBackend(rules.allow),
    )


def leave_pool(rules: ConnectionRules, origin: bytes, pool: httpcore.ConnectionPool) -> None:
    surplus = None
    with _lock:
        _kept.append((os.getpid(), rules, origin, pool))
        if len(_kept) > KEPT_MAX:
            surplus = _kept.pop(0)
    if surplus is not None:
        surplus[3].close()
