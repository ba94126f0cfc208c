"""What maintenance gets from the lake.

The outcome of a run follows from what its function does: it returns a result (`done`), or raises `Skipped` (not safe
now, for example after a jump of the clock: `skipped`), another `RefusedError` (`refused`), or anything else (`failed`).
`runs.py` registers and records runs; the functions that do the work need not know about them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from strandline.core.delivery_types import RefusedRow, SinkRecord
from strandline.core.errors import LeaseLost, ResyncNeeded, WatermarkMoved
from strandline.core.read_token import ReadBounds
from strandline.core.retry import RetryPolicy
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset, Lease, NumberedRows
from strandline.iceberg.lake_tables import LakeTables
from strandline.jobs.heartbeat import holding_lease
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import Ledger
from strandline.ledger.recovery import Recovery
from strandline.ledger.witness import Witness
from strandline.read.settled_view import SettledView, check_table, open_settled

_AFTER_CHANGE = RetryPolicy(0.0, attempts_max=5)
R = TypeVar("R")
MaintainProgress = Callable[[str, int, int | None], None]  # (step, done, total if known)


def quiet(step: str, done: int, total: int | None) -> None:
    """Reports no progress."""


class RowNumbering(Recovery, Protocol):
    """Implemented by `ingest/facade.Ingestion`."""

    def number(self, dataset: Dataset) -> NumberedRows:
        """Gives a sequence number to every row of an adopted table that has none."""


class ReceivedRows(Protocol):
    """Rows that a receiver has accepted. Implemented by `receive/facade.Receiver`."""

    def ingest_waiting(self, dataset: Dataset) -> int:
        """Ingests received bodies of the dataset that are not in its table yet. Returns how many."""


class QuarantinedRows(Protocol):
    """Rows that sinks refused. Implemented by `deliver/quarantine/rows.QuarantineForPurge`."""

    def of_dataset(self, dataset: Dataset) -> Sequence[RefusedRow]:
        """Includes rows of removed sinks."""

    def discard(self, dataset: Dataset, ids: Collection[int]) -> Sequence[str]:
        """Discards these rows, and stored content that nothing needs. Returns what could not be deleted, and why. The
        caller holds the leases of the sinks."""


@dataclass(frozen=True, slots=True)
class MaintainContext:
    lake_id: str
    config: LakeConfig
    ledger: Ledger
    tables: LakeTables
    witness: Witness  # raising a floor takes a sequence number
    ingestion: RowNumbering
    received: ReceivedRows
    quarantine: QuarantinedRows

    def check(self, dataset: Dataset) -> None:
        check_table(self.ledger, self.tables.settled, self.lake_id, dataset)

    def retried(self, attempt: Callable[[], R]) -> R:
        """Tries again if the ledger or a sink was changed before the attempt had recorded anything."""
        return _AFTER_CHANGE.call(attempt, (ResyncNeeded, WatermarkMoved, LeaseLost), self.ingestion.recover)

    def settled(self, dataset: Dataset, bounds: ReadBounds) -> SettledView:
        return open_settled(self.config, self.ledger, self.tables.settled, self.lake_id, dataset, bounds)


# After that, maintenance seizes the lease, and the deliverer can record nothing more.
_WAIT_FOR_DELIVERER = RetryPolicy(0.2, 0.2, seconds_max=10.0)


@contextmanager
def without_deliverer(context: MaintainContext, record: SinkRecord) -> Iterator[Lease]:
    """Holds the sink's lease: nobody delivers meanwhile, so that the counted losses are exact."""
    seconds = context.config.settings.deliver.lease_seconds
    for attempt in _WAIT_FOR_DELIVERER.attempts():
        lease = sinks.leases.take(context.ledger, record.id, seconds=seconds)
        if lease is not None:
            break
        if attempt.is_last:
            lease = sinks.leases.seize(context.ledger, record.id, seconds=seconds)
    if lease is None:
        raise LeaseLost(f"sink {record.name} was removed meanwhile", hint="Try again.")
    with holding_lease(context.ledger, sinks.leases, lease, seconds=seconds):
        yield lease
