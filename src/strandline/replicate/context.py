"""What all steps of a follower share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.core.settings import LakeConfig
from strandline.ledger.engine import Ledger
from strandline.ledger.recovery import Recovery
from strandline.ledger.witness import Witness
from strandline.replicate.source import LeaderSource

if TYPE_CHECKING:  # a pass that applies nothing loads no Spark
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.ingest.context import IngestContext
    from strandline.maintain.context import MaintainContext


@dataclass(frozen=True)
class FollowContext:
    lake: str
    config: LakeConfig
    ledger: Ledger
    witness: Witness
    source: LeaderSource
    ingestion: Recovery
    started: Callable[[], IngestContext]  # the first call starts Spark, and settles what dead processes left
    catalog: Callable[[], PyIcebergCatalog]
    maintenance: Callable[[], MaintainContext]
    altering: threading.Lock = field(default_factory=threading.Lock)  # items of one dataset are applied side by side

    @property
    def work(self) -> IngestContext:
        return self.started()
