"""Settings of the receiver."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings.section import Section


class ReceiveSettings(Section):
    """The receiver, `strandline receive`: it accepts rows from `forward` sinks and from any HTTP client."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8420, ge=0, le=65_535)
    """The port to listen on. 0 picks a free one."""
    tls_certificate: str | None = None
    """The TLS certificate, a PEM file. With it, the server speaks only HTTPS."""
    tls_key: str | None = None
    """The certificate's key, a PEM file."""
    body_bytes_max: int = Field(default=16 << 20, ge=1024)
    """The largest body, in bytes as sent (compressed)."""
    rows_bytes_max: int = Field(default=64 << 20, ge=1024)
    """The largest body after decompression, in bytes, and the most bytes of its rows. One line of JSON may have a third
    of it."""
    body_seconds_max: float = Field(default=120, gt=0, le=3600)
    """How long a client may take to send one body. Until then it counts as one of `requests_at_once_max`."""
    requests_at_once_max: int = Field(default=32, ge=1, le=4096)
    """How many requests are handled at the same time. Further clients get 429 and retry."""
    connections_max: int = Field(default=1024, ge=1)
    """How many connections may be open. Beyond it, the connection that was idle for longest is closed."""
    head_seconds_max: float = Field(default=20, gt=0, le=3600)
    """How long a client may take to send the head of a request. After that its connection is closed."""
    spool_bytes_max: int = Field(default=4 << 30, ge=1)
    """How many bytes may wait for ingest, over all datasets. Beyond it, clients get 429 and retry."""
    spool_dataset_bytes_max: int = Field(default=2 << 30, ge=1)
    """How many bytes may wait for ingest into one dataset, so that a dataset that is stuck leaves room for the
    others."""
    spool_reserve_bytes: int = Field(default=64 << 20, ge=0)
    """How many bytes may wait for each dataset even if `spool_bytes_max` is reached."""
    retry_after_seconds: int = Field(default=2, ge=1, le=3600)
    """The `Retry-After` that a rejected client gets."""
    batch_rows_max: int = Field(default=1_000_000, ge=1)
    """About how many rows are ingested as one batch."""
    batch_wait_seconds_max: float = Field(default=5.0, ge=0, le=3600)
    """How long received rows wait for more before they are ingested."""
    keys_kept_days: int = Field(default=30, ge=1)
    """How long an `Idempotency-Key` is remembered after its rows were ingested. Choose more than the longest time over
    which a client retries. Ranges of `forward` sinks are remembered forever."""
    receipts_kept_days: int = Field(default=30, ge=1)
    """How long the warehouse keeps the receipts of ingested batches. A restored ledger learns from them which bodies
    were ingested. If its copy is older than this, the receiver stays on hold until a person releases it."""
