"""What maintenance works with.

How a run ends is told by what it does: it returns a result (`done`), or raises `Skipped` (not safe just now, such as
after a jump of the clock: `skipped`), another `RefusedError` (a guard said no: `refused`), or anything else (`failed`).
Runs are begun, kept alive, ended and stored by `runs.py`; nothing that does the work needs to know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.core.delivery_types import SinkRecord
from strandline.core.read_token import Bounds
from strandline.core.settings import LakeConfig
from strandline.core.types import Dataset, Numbered, Seq
from strandline.ledger.engine import Ledger
from strandline.ledger.witness import Witness
from strandline.read.settled_view import SettledView, check_table, open_settled

if TYPE_CHECKING:
    from strandline.iceberg.pyiceberg.catalog import LightCatalog
    from strandline.iceberg.spark.tables import SparkTables

Progress = Callable[[str, int, int | None], None]
"""Told (step, done, of how many, where that is known)."""


def quiet(step: str, done: int, total: int | None) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    id: int
    """In the ledger: a sink that was reset may have refused a number twice."""
    sink: SinkRecord
    removed: bool
    generation: int
    partition: str
    number: Seq
    size: int
    may_have_landed: bool
    """It was sent again, and nobody knows yet what became of it."""
    read: Callable[[], Mapping[str, Any] | None]
    """Its values by column; none where they are gone already, None where nobody can tell."""


@dataclass(frozen=True, slots=True)
class MaintainContext:
    lake_id: str
    config: LakeConfig
    ledger: Ledger
    tables: Callable[[], SparkTables]
    """Starts Spark when it is called for the first time."""
    catalog: Callable[[], LightCatalog]
    recover: Callable[[], object]
    """Settles what dead writers left: staged blocks are rolled forward, so that nothing waits on a branch."""
    witness: Witness
    """Raising a floor takes a number."""
    take_in: Callable[[Dataset], int]
    """Ingests what the receiver has taken for the dataset and not ingested yet; how many bodies that were."""
    quarantined: Callable[[Dataset], Sequence[RefusedRow]]
    """Rows that sinks of the dataset refused and that are kept, also those of sinks that were removed."""
    discard: Callable[[Dataset, Collection[int]], Sequence[str]]
    """Gives up such rows by their ids, and whatever is kept without need; says what is left of them, and why. The
    caller holds the leases of the sinks."""
    number: Callable[[Dataset], Numbered]
    """Gives a number to every row of an adopted table that has none."""

    def check(self, dataset: Dataset) -> None:
        check_table(self.ledger, self.tables(), self.lake_id, dataset)

    def settled(self, dataset: Dataset, bounds: Bounds) -> SettledView:
        return open_settled(self.config, self.ledger, self.tables(), self.lake_id, dataset, bounds)
