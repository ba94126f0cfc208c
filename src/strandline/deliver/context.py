"""What the stages of delivery share, and the sealed rows that they deliver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.core.read_token import Continuation, ReadBounds
from strandline.core.settings.lake_config import DeliverSettings, LakeConfig
from strandline.core.types import Dataset, Seq
from strandline.iceberg.lake_tables import LakeTables
from strandline.ledger.engine import Ledger
from strandline.ledger.replicate import sites
from strandline.read.settled_view import SettledView, open_settled


@dataclass(frozen=True, slots=True)
class DeliverContext:
    lake: str
    config: LakeConfig
    ledger: Ledger
    tables: LakeTables

    @property
    def settings(self) -> DeliverSettings:
        return self.config.settings.deliver

    def term(self) -> int:
        """In which this site leads, or follows."""
        return self.ledger.query(sites.get).term

    def token(self, dataset: Dataset) -> Callable[[Seq | None], str]:
        return lambda mark: Continuation(self.lake, dataset.uuid, mark).encode()


def settled(context: DeliverContext, dataset: Dataset, after: Seq | None, until: Seq) -> SettledView:
    bounds = ReadBounds(after, until)
    return open_settled(context.config, context.ledger, context.tables.settled, context.lake, dataset, bounds)
