"""Settings of the HTTP API and the dashboard."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings.section import Section


class ServeSettings(Section):
    """The HTTP API and the dashboard: `strandline serve`. By default, only this machine reaches them."""

    host: str = "127.0.0.1"
    """The address to listen on. An address that other machines can reach needs a certificate or `--insecure-http`."""
    port: int = Field(default=8421, ge=0, le=65_535)
    """The port to listen on. 0 picks a free one."""
    tls_certificate: str | None = None
    """The TLS certificate, a PEM file. With it, the server speaks only HTTPS."""
    tls_key: str | None = None
    """The certificate's key, a PEM file."""
    session_key: str | None = None
    """The key that signs session cookies: `env:NAME` or `file:PATH`. Processes on several machines that serve the same
    lake need the same key. Without: a file in the lake's folder, created when it is first needed."""
    session_idle_minutes: int = Field(default=30, ge=1, le=10_080)
    """A browser is logged out when nobody has opened a page or pressed a button for this long. An open page that only
    refreshes itself does not count."""
    session_hours_max: int = Field(default=12, ge=1, le=168)
    """A browser is logged out this long after its login, even if it is in use."""
    cookie_secure: bool = False
    """Sets the cookie's `Secure` flag, for a server behind a TLS proxy. A server with a certificate of its own always
    sets it."""
    logins_per_minute_max: int = Field(default=10, ge=1, le=10_000)
    """Login attempts from one address; ten times as many from all addresses together."""
    body_bytes_max: int = Field(default=1 << 20, ge=1024, le=1 << 30)
    """The largest request body, in bytes: far more than any request needs."""
    body_seconds_max: float = Field(default=20, gt=0, le=3600)
    """How long a client may take to send the body of a request."""
    requests_at_once_max: int = Field(default=256, ge=1, le=65_536)
    """How many requests are handled at the same time. Further clients get 429 and retry."""
    requests_per_second_max: int = Field(default=500, ge=1, le=1_000_000)
    """Requests per second of one caller: a token, a logged-in browser, or an address without either. A burst may have
    the requests of four seconds."""
    connections_max: int = Field(default=2048, ge=1)
    """How many connections may be open. Beyond it, the connection that was idle for longest is closed."""
    head_seconds_max: float = Field(default=20, gt=0, le=3600)
    """How long a client may take to send the head of a request. After that its connection is closed."""
    retry_after_seconds: int = Field(default=2, ge=1, le=3600)
    """The `Retry-After` that a rejected client gets."""
    refresh_seconds: float = Field(default=2, ge=0, le=3600)
    """How old the status may be that the API, the dashboard and `/metrics` show. While there are requests, the server
    reads the lake this often and answers all of them from it. 0: it reads the lake for every request."""
    reads_at_once_max: int = Field(default=8, ge=1, le=256)
    """How many requests may read the ledger or the catalog at the same time."""
    changes_at_once_max: int = Field(default=4, ge=1, le=256)
    """How many requests may change something at the same time."""
    work_at_once_max: int = Field(default=4, ge=1, le=64)
    """How many tasks (ticks, maintenance, runs of the reconciler) may run in this process. Further ones are refused;
    retry them later."""
