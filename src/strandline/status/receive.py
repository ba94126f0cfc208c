"""The read model of receiving: rows that were received over HTTP and are not in their table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from strandline.ledger.engine import Connection
from strandline.ledger.receive import receive_report, spool_files
from strandline.ledger.receive.receive_report import Waiting, WaitingBatch


@dataclass(frozen=True, slots=True)
class WaitingBodies:
    """Bodies that could not be ingested and wait for a person."""

    bodies: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """Spool files whose bodies cannot be recorded. Their senders may have got the answer that they are safe."""

    files: int
    reason: str | None  # of the first; None if that is not among the few that are stored by name


_NOTHING_ASIDE = WaitingBodies(0, 0, 0)


@dataclass(frozen=True, slots=True)
class ReceiveStatus:
    """The received rows of one dataset. `bodies`, `rows`, `bytes` and `oldest` count bodies that wait to be
    ingested."""

    dataset: str
    bodies: int
    rows: int
    bytes: int
    oldest: datetime | None
    batches: tuple[WaitingBatch, ...]
    set_aside: WaitingBodies
    dropped: bool  # the dataset was dropped, so nobody ingests them any more
    unrecorded: Unrecorded = Unrecorded(0, None)


def read_receive(connection: Connection) -> tuple[ReceiveStatus, ...] | None:
    """The datasets with such bodies; None if nothing was ever received."""
    waiting, left = receive_report.report(connection), spool_files.read_left(connection)
    if not waiting and not left.by_dataset and not receive_report.has_any(connection):
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
        w.batches,
        WaitingBodies(aside.bodies, aside.rows, aside.bytes),
        w.is_dropped,
    )
