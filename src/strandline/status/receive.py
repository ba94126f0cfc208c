"""What was received over HTTP and is not in its table: the part of the read model that `status` and `metrics` share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from strandline.ledger.engine import Ledger
from strandline.ledger.receive import received
from strandline.ledger.receive.receive_report import UnfinishedBatch, Waiting, report


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """Bodies that are ingested together, and that are not yet."""

    batch_id: str
    rows: int
    since: datetime
    tries: int
    """That failed."""
    reason: str | None
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class SetAside:
    """Bodies that could not be ingested and wait for a person."""

    bodies: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReceiveStatus:
    """Of one dataset. `bodies`, `rows`, `bytes` and `oldest` are of those that wait to be ingested."""

    dataset: str
    bodies: int
    rows: int
    bytes: int
    oldest: datetime | None
    batches: tuple[WaitingBatch, ...]
    set_aside: SetAside
    dropped: bool
    """The dataset is gone, and nobody ingests them any more."""


def look(ledger: Ledger) -> tuple[ReceiveStatus, ...] | None:
    """The datasets that have such bodies; None where nothing was ever received."""
    with ledger.read() as connection:
        waiting = report(connection)
        if not waiting and not received.any_known(connection):
            return None
    return tuple(map(_status, waiting))


def _status(w: Waiting) -> ReceiveStatus:
    now, aside = w.to_ingest, w.set_aside
    return ReceiveStatus(
        w.name,
        now.bodies,
        now.rows,
        now.bytes,
        now.oldest,
        tuple(map(_batch, w.batches)),
        SetAside(aside.bodies, aside.rows, aside.bytes),
        w.is_dropped,
    )


def _batch(b: UnfinishedBatch) -> WaitingBatch:
    return WaitingBatch(b.batch_id, b.rows, b.created_at, b.failures, b.reason, b.retry_at)
