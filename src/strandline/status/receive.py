"""What was received over HTTP and is not in its table: the part of the read model that `status` and `metrics` share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from strandline.ledger.engine import Ledger
from strandline.ledger.receive import received, spool_files
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
class Unrecorded:
    """Files in the spool whose bodies cannot be recorded; their senders may have been told that they are safe."""

    files: int
    reason: str | None
    """Of the first; None where it is not among the few that are kept by name."""


_NOTHING_ASIDE = SetAside(0, 0, 0)


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
    unrecorded: Unrecorded = Unrecorded(0, None)


def look(ledger: Ledger) -> tuple[ReceiveStatus, ...] | None:
    """The datasets that have such bodies; None where nothing was ever received."""
    with ledger.read() as connection:
        waiting, left = report(connection), spool_files.left(connection)
        if not waiting and not left.by_dataset and not received.any_known(connection):
            return None
    live = {w.name: _status(w) for w in waiting if not w.is_dropped}
    for name, files in left.by_dataset.items():
        status = live.get(name) or ReceiveStatus(name, 0, 0, 0, None, (), _NOTHING_ASIDE, dropped=False)
        live[name] = replace(status, unrecorded=Unrecorded(files, left.reason(name)))
    dropped = [_status(w) for w in waiting if w.is_dropped]  # several may have had the same name
    return tuple(sorted([*live.values(), *dropped], key=lambda s: s.dataset))


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
