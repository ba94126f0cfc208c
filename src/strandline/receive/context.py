"""What a receiver is made of. The lake puts it together, because only it knows the other stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.core.forward_protocol import LaneName
from strandline.core.settings import LakeConfig
from strandline.core.types import Dataset, Seq
from strandline.iceberg.schema.columns import Column
from strandline.ledger.engine import Ledger
from strandline.ledger.receive.receipts import Receipts
from strandline.ledger.witness import Witness
from strandline.receive.spool import Spool

if TYPE_CHECKING:
    from strandline.receive.body.json_lines import ReadLines


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class ReceiverContext:
    config: LakeConfig
    ledger: Ledger
    spool: Spool
    receipts: Receipts
    witness: Witness
    schema_of: Callable[[str], tuple[Dataset, Sequence[Column]]]
    """The dataset of a name, and the columns that its table has now; NoSuchDataset where there is none."""
    read_lines: ReadLines
    """`strandline.ingest.sources.body.read_json_lines`."""
    inspect: Callable[[Dataset, LaneName, Seq, Seq], Mapping[str, Any]]
    """What is really there of a lane's ranges in lo..hi: `ranges`, and `next` where there is more."""
    on_behind: Callable[[], None] = _nothing
    """Called when the ledger is found to be behind the witness: somebody has to open it."""
    close: Callable[[], None] = _nothing
    """Called last, when every request is answered."""
