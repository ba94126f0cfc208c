"""Settings of the HTTP API and the dashboard."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings_section import Section


class ServeSettings(Section):
    """The HTTP API and the dashboard: `strandline serve`. Only this machine reaches them unless you say otherwise."""

    host: str = "127.0.0.1"
    """The address to listen on. An address that other machines can reach needs a certificate or `--insecure-http`."""
    port: int = Field(default=8421, ge=0, le=65_535)
    """The port to listen on; 0 is any that is free."""
    tls_certificate: str | None = None
    """A PEM file; with it, only HTTPS is spoken."""
    tls_key: str | None = None
    """The certificate's key, a PEM file."""
    session_key: str | None = None
    """`env:NAME` or `file:PATH`: what signs the cookies of browsers. Processes that serve the same lake from several
    machines need the same one. Without: a file in the lake's folder, made when it is first needed."""
    session_idle_minutes: int = Field(default=30, ge=1, le=10_080)
    """A browser is logged out when nobody has opened a page or pressed a button in it for so long. A page that stays
    open and refreshes itself does not count."""
    session_hours_max: int = Field(default=12, ge=1, le=168)
    """A browser is logged out so long after it has logged in, however much it is used."""
    cookie_secure: bool = False
    """Browsers send the cookie over HTTPS only, also if this process does not speak it: for one behind a proxy that
    encrypts. With a certificate of its own that is always so."""
    logins_per_minute_max: int = Field(default=10, ge=1, le=10_000)
    """Attempts to log in from one address; ten times as many from all."""
    body_bytes_max: int = Field(default=1 << 20, ge=1024, le=1 << 30)
    """Bytes of one request body: far more than any request needs."""
    body_seconds_max: float = Field(default=20, gt=0, le=3600)
    """How long a client may take to send the body of a request."""
    requests_at_once_max: int = Field(default=256, ge=1, le=65_536)
    """Requests that are answered side by side; more are asked to come again."""
    requests_per_second_max: int = Field(default=500, ge=1, le=1_000_000)
    """Requests of one caller: a token, a logged-in browser, or an address without either. Four seconds' worth may come
    at once."""
    connections_max: int = Field(default=2048, ge=1)
    """Connections at once; beyond it, the one that was idle for longest is closed."""
    head_seconds_max: float = Field(default=20, gt=0, le=3600)
    """How long a client may take to send the head of a request; then its connection is closed."""
    retry_after_seconds: int = Field(default=2, ge=1, le=3600)
    """When a client that was turned away is asked to come again."""
    refresh_seconds: float = Field(default=2, ge=0, le=3600)
    """How old the status may be that the API, the dashboard and `/metrics` show. While somebody asks, the lake is read
    this often, for all who ask together. 0: for every request."""
    reads_at_once_max: int = Field(default=8, ge=1, le=256)
    """Requests that read the ledger or the catalog at the same time, in threads."""
    changes_at_once_max: int = Field(default=4, ge=1, le=256)
    """Requests that change something at the same time, in threads of their own."""
    work_at_once_max: int = Field(default=4, ge=1, le=64)
    """Long work (ticks, maintenance, runs of the reconciler) that requests may have under way in this process. More is
    refused, to be asked for again later."""
