"""What a follower asks of its leader. `transports/shared.py` reads the leader's ledger and tables itself,
`transports/http.py` asks its API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from strandline.core.sites.replication import DatasetTerms, Offer, SinkDefinition
from strandline.core.types import DatasetUuid, Seq, SeqRange
from strandline.ledger.receive.announced_bodies import AnnouncedBatch
from strandline.ledger.replicate.followers import Acknowledgement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import types as T

    from strandline.iceberg.spark.tables import SparkTables


@dataclass(frozen=True, slots=True)
class LeaderSite:
    lake: str
    term: int
    site_number: int | None = None  # of the site that asks, as the leader gave it


@dataclass(frozen=True, slots=True)
class Polled:
    """The answer to one request."""

    site: LeaderSite
    offers: tuple[Offer, ...]  # of datasets that have items behind the follower's bound
    made: tuple[DatasetTerms, ...]  # datasets that the follower did not name
    dropped: tuple[DatasetUuid, ...]  # datasets that it named, and that the leader has dropped
    sinks: tuple[SinkDefinition, ...] | None = None  # None: as they were told before
    # How far the leader had sealed each dataset that the follower named: the follower never had more. Not in it: nobody
    # knows now.
    seals: Mapping[DatasetUuid, Seq | None] = field(default_factory=dict)
    datasets: tuple[DatasetUuid, ...] = ()  # all that the leader has and lets it see
    sinks_version: str | None = None  # of the sinks as they are now


@dataclass(frozen=True, slots=True)
class RangeContent:
    """What the leader has of a range now. `fields` are the leader's columns as Iceberg's JSON, with ids. `frame` gives
    the rows with the columns that it is asked for, by their names at the leader and in the types that it is told."""

    fields: Sequence[Mapping[str, Any]] = field(repr=False)
    frame: Callable[[T.StructType], DataFrame]
    # What the leader's table has stored of the leader that it followed before: JSON. None: nothing.
    former_fields: str | None = None


class LeaderSource(Protocol):
    def site(self) -> LeaderSite:
        """Whose lake it is. Raises StorageError if the leader does not answer."""

    def poll(self, after: Mapping[DatasetUuid, Seq], *, items_max: int, sinks_version: str | None = None) -> Polled:
        """What lies behind the bounds: one request, and one read of the leader's ledger. With the
        leader's sinks, if something is new, or if their version is another one."""

    def content(
        self, tables: SparkTables, dataset: DatasetUuid, rows: SeqRange
    ) -> AbstractContextManager[RangeContent]:
        """The rows of the range. Whatever fails while they are read raises, and then nothing of them may be used."""

    def numbers(self, tables: SparkTables, dataset: DatasetUuid, rows: SeqRange) -> AbstractContextManager[DataFrame]:
        """The sequence numbers of the range that the leader still has."""

    def bodies(self, dataset: DatasetUuid, batch_id: str) -> AnnouncedBatch | None:
        """The bodies in a received batch that is in the leader's table. None if the leader does not know them, or is of
        a version that does not tell."""

    def acknowledge(self, told: Acknowledgement) -> None:
        """Says how far the follower is, and which site it is."""

    def close(self) -> None: ...
