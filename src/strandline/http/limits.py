"""What a server allows its clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    connections_max: int  # beyond it, the connection that was idle for longest is closed
    head_seconds_max: float  # how long a client may take for its TLS handshake, and for the head of a request
    # How long the last requests may take when the server stops. A client that needs longer is disconnected: it got no
    # answer, so it repeats.
    last_seconds_max: int
