"""What maintenance works with.

How a run ends is told by what it does: it returns a result (`done`), or raises `Skipped` (not safe just now, such as
after a jump of the clock: `skipped`), another `RefusedError` (a guard said no: `refused`), or anything else (`failed`).
Runs are begun, kept alive, ended and stored by `runs.py`; nothing that does the work needs to know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from strandline.core.delivery_types import RefusedRow
from strandline.core.read_token import Bounds
from strandline.core.settings import LakeConfig
from strandline.core.types import Dataset, Numbered
from strandline.ledger.engine import Ledger
from strandline.ledger.recovery import Recovery
from strandline.ledger.witness import Witness
from strandline.read.settled_view import SettledView, check_table, open_settled

if TYPE_CHECKING:
    from strandline.iceberg.spark.tables import SparkTables

Progress = Callable[[str, int, int | None], None]
"""Told (step, done, of how many, where that is known)."""


def quiet(step: str, done: int, total: int | None) -> None:
    """Nobody looks."""


class RowNumbering(Recovery, Protocol):
    """`ingest/facade.Ingestion` gives it."""

    def number(self, dataset: Dataset) -> Numbered:
        """Gives a sequence number to every row of an adopted table that has none."""


class ReceivedRows(Protocol):
    """Rows that a receiver has taken. `receive/facade.Receiver` gives it."""

    def ingest_waiting(self, dataset: Dataset) -> int:
        """Ingests what was received for the dataset and is not in its table yet; how many bodies that were."""


class QuarantinedRows(Protocol):
    """Rows that sinks refused and that are kept. `deliver/quarantine/rows.QuarantineForPurge` gives it."""

    def of_dataset(self, dataset: Dataset) -> Sequence[RefusedRow]:
        """Also those of sinks that were removed."""

    def discard(self, dataset: Dataset, ids: Collection[int]) -> Sequence[str]:
        """Gives up such rows by their ids, and whatever is kept without need; says what is left of them, and why. The
        caller holds the leases of the sinks."""


@dataclass(frozen=True, slots=True)
class MaintainContext:
    lake_id: str
    config: LakeConfig
    ledger: Ledger
    tables: Callable[[], SparkTables]
    """Starts Spark when it is called for the first time."""
    witness: Witness
    """Raising a floor takes a number."""
    ingestion: RowNumbering
    received: ReceivedRows
    quarantine: QuarantinedRows

    def check(self, dataset: Dataset) -> None:
        check_table(self.ledger, self.tables(), self.lake_id, dataset)

    def settled(self, dataset: Dataset, bounds: Bounds) -> SettledView:
        return open_settled(self.config, self.ledger, self.tables(), self.lake_id, dataset, bounds)
