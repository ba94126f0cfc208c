"""Settings of the receiver."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings_section import Section


class ReceiveSettings(Section):
    """The other end of `forward`, and a way in for any HTTP client: `strandline receive`."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8420, ge=0, le=65_535)
    """The port to listen on; 0 is any that is free."""
    tls_certificate: str | None = None
    """A PEM file; with it, only HTTPS is spoken."""
    tls_key: str | None = None
    """The certificate's key, a PEM file."""
    body_bytes_max: int = Field(default=16 << 20, ge=1024)
    """Bytes of one body, as it is sent."""
    rows_bytes_max: int = Field(default=64 << 20, ge=1024)
    """Bytes of one body after decompression, and of its rows; a line of JSON has a third of it."""
    body_seconds_max: float = Field(default=120, gt=0, le=3600)
    """How long a client may take to send one body; it holds a place until then."""
    requests_at_once_max: int = Field(default=32, ge=1, le=4096)
    """Bodies and questions of senders that are taken in side by side; more are asked to come again."""
    connections_max: int = Field(default=1024, ge=1)
    """Connections at once; beyond it, the one that was idle for longest is closed."""
    head_seconds_max: float = Field(default=20, gt=0, le=3600)
    """How long a client may take to send the head of a request; then its connection is closed."""
    spool_bytes_max: int = Field(default=4 << 30, ge=1)
    """Bytes that wait for ingest, of all datasets; beyond it clients are asked to come again."""
    spool_dataset_bytes_max: int = Field(default=2 << 30, ge=1)
    """Bytes that wait for ingest into one dataset, so that one that is stuck leaves room for others."""
    spool_reserve_bytes: int = Field(default=64 << 20, ge=0)
    """Bytes that may wait for each dataset however many wait for others: beyond `spool_bytes_max`, too."""
    retry_after_seconds: int = Field(default=2, ge=1, le=3600)
    """When a client that was turned away is asked to come again."""
    batch_rows_max: int = Field(default=1_000_000, ge=1)
    """Rows that are ingested as one batch, about."""
    batch_wait_seconds_max: float = Field(default=5.0, ge=0, le=3600)
    """How long rows wait for others before they are ingested."""
    keys_kept_days: int = Field(default=30, ge=1)
    """How long an `Idempotency-Key` is remembered after its rows were ingested: longer than any client retries. Ranges
    of Strandline's own senders are kept forever."""
    receipts_kept_days: int = Field(default=30, ge=1)
    """How long the warehouse keeps the receipts of ingested batches. A ledger that is restored from a copy takes back
    from them what it has forgotten; with an older copy, the receiver holds until a person looks."""
