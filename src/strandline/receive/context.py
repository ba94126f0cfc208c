"""The parts of a receiver. The lake puts them together, because only the lake knows the other stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from strandline.core.forward_protocol import LaneName
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset, Seq
from strandline.iceberg.schema.columns import Column
from strandline.ledger.engine import Ledger
from strandline.ledger.receive.receipts import Receipts
from strandline.ledger.witness import Witness
from strandline.receive.spool import Spool

if TYPE_CHECKING:
    from strandline.receive.body.json_lines import ReadLines


class ReceivedTables(Protocol):
    """The tables, for requests. `receive/facade.Receiver` implements it."""

    def schema_of(self, name: str) -> tuple[Dataset, Sequence[Column]]:
        """The dataset of a name, with the current columns of its table. Raises NoSuchDataset."""

    def inspect(self, dataset: Dataset, lane: LaneName, lo: Seq, hi: Seq) -> Mapping[str, Any]:
        """The rows that exist of a lane's ranges in lo..hi: `ranges`, and `next` if there are more."""


@dataclass(frozen=True)
class ReceiverContext:
    config: LakeConfig
    ledger: Ledger
    spool: Spool
    receipts: Receipts
    witness: Witness
    tables: ReceivedTables
    read_lines: ReadLines  # `strandline.ingest.sources.body.read_json_lines`
    on_behind: Callable[[], None] = lambda: None  # called when the ledger is behind the witness and needs a resync
