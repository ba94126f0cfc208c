"""What maintenance works with.

How a run ends is told by what it does: it returns a result (`done`), or raises `Skipped` (not safe just now, such as
after a jump of the clock: `skipped`), another `RefusedError` (a guard said no: `refused`), or anything else (`failed`).
Runs are begun, kept alive, ended and stored by `runs.py`; nothing that does the work needs to know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.config import LakeConfig
from strandline.ledger.engine import Ledger
from strandline.ledger.witness import Witness
from strandline.types import Dataset, DatasetId, Seq

if TYPE_CHECKING:
    from strandline.tables.light import LightCatalog
    from strandline.tables.spark_tables import SparkTables

Progress = Callable[[str, int, int | None], None]
"""Told (step, done, of how many, where that is known)."""


def quiet(step: str, done: int, total: int | None) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    sink: str
    dataset: DatasetId
    number: Seq
    content: object
    """Its values by column; anything else where nobody can tell."""


@dataclass(frozen=True, slots=True)
class MaintainBench:
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
    quarantined: Callable[[], Sequence[RefusedRow]]
    """Rows that sinks refused and that are kept for them, with their content where it can be shown."""
    discard: Callable[[str, Sequence[int]], object]
    """Gives up such rows of a sink, by their numbers."""
