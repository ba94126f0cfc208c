"""What all steps of a follower share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.engine import Ledger
from strandline.ledger.recovery import Recovery
from strandline.ledger.witness import Witness
from strandline.replicate.source import LeaderSource

if TYPE_CHECKING:  # a pass that applies nothing loads no Spark
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.ingest.context import IngestContext
    from strandline.maintain.facade import Maintenance


class SiteParts(Protocol):
    """The other stages that following uses. Each is made when it is first used. Implemented by
    `lake_parts.LakeParts`."""

    @property
    def ingestion(self) -> Recovery: ...
    @property
    def work(self) -> IngestContext:
        """The first use starts Spark, and settles the blocks of dead processes."""

    @property
    def catalog(self) -> PyIcebergCatalog: ...
    @property
    def maintenance(self) -> Maintenance: ...


@dataclass(frozen=True)
class FollowContext:
    lake: str
    config: LakeConfig
    ledger: Ledger
    witness: Witness
    source: LeaderSource
    parts: SiteParts
    altering: threading.Lock = field(default_factory=threading.Lock)  # items of one dataset are applied concurrently

    @property
    def work(self) -> IngestContext:
        return self.parts.work
