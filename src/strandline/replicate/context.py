"""What all steps of a follower share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.core.settings import LakeConfig
from strandline.ingest.context import IngestContext
from strandline.ledger.engine import Ledger
from strandline.ledger.recovery import Recovery
from strandline.ledger.witness import Witness
from strandline.maintain.context import MaintainContext
from strandline.replicate.source import LeaderSource

if TYPE_CHECKING:
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog


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
