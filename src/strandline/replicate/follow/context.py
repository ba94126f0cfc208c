"""What all steps of a follower share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.recovery import Recovery
from strandline.ledger.replicate import sites
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
    since: datetime | None  # when the site began to follow the leader that `source` asks
    parts: SiteParts
    altering: threading.Lock = field(default_factory=threading.Lock)  # items of one dataset are applied concurrently

    @property
    def work(self) -> IngestContext:
        return self.parts.work

    def check_follows(self, connection: Connection) -> None:
        """Raises RefusedError at a site that leads, or is about to, and `WatermarkMoved` at one that has become a
        follower anew since `source` was opened."""
        sites.check_still_follows(connection, self.since)

    @contextmanager
    def change(self) -> Iterator[Connection]:
        """A transaction for what the leader says outside of its items: until it ends, this site follows that leader. A
        process may stand still between the leader's answer and this, and the site leads by now. Raises as
        `check_follows`."""
        with self.ledger.write() as connection:
            sequence.lock(connection)  # first, as whoever changes the role does
            sites.lock(connection)
            self.check_follows(connection)
            yield connection
