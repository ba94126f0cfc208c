"""The interface through which a follower reads its leader. `transports/shared.py` reads the leader's ledger and tables,
`transports/http.py` calls its API."""

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
    site_number: int | None = None  # of the site that asks; the leader assigned it


@dataclass(frozen=True, slots=True)
class LeaderAnswer:
    """The leader's answer to one poll. Over HTTP, the fields have the same names."""

    lake: str
    term: int
    offers: tuple[Offer, ...] = ()  # of datasets that have items above the follower's bound
    made: tuple[DatasetTerms, ...] = ()  # datasets that the follower did not name
    dropped: tuple[DatasetUuid, ...] = ()  # datasets that it named, and that the leader has dropped
    # How far the leader has sealed each dataset that the follower named: the follower never had more. A dataset that
    # waits for its resync at the leader is not in it.
    seals: Mapping[DatasetUuid, Seq | None] = field(default_factory=dict)
    sinks: tuple[SinkDefinition, ...] | None = None  # None: unchanged since `sinks_version` of the request
    # All datasets that the leader lets the follower see, also those whose tables cannot be read now.
    datasets: tuple[DatasetUuid, ...] = ()
    site_number: int | None = None  # of the site that asks; None: it cannot be promoted
    sinks_version: str | None = None  # of the sinks as they are now

    @property
    def site(self) -> LeaderSite:
        return LeaderSite(self.lake, self.term, self.site_number)


@dataclass(frozen=True, slots=True)
class RangeContent:
    """The rows that the leader has of a range now. `fields` are the leader's columns as Iceberg's JSON, with ids.
    `frame` returns the rows with the columns of a schema: names as at the leader, types as in the schema."""

    fields: Sequence[Mapping[str, Any]] = field(repr=False)
    frame: Callable[[T.StructType], DataFrame]
    # The field ids of the leader that this leader followed before, as JSON (`KnownFields`). None: it stored none.
    former_fields: str | None = None


class LeaderSource(Protocol):
    def site(self) -> LeaderSite:
        """Raises StorageError if the leader does not answer."""

    def poll(
        self, after: Mapping[DatasetUuid, Seq], *, items_max: int, sinks_version: str | None = None
    ) -> LeaderAnswer:
        """Items above the bounds, by one request and one read of the leader's ledger. The leader's sinks come with them
        if something is new, or if `sinks_version` is not the current one."""

    def content(
        self, tables: SparkTables, dataset: DatasetUuid, rows: SeqRange
    ) -> AbstractContextManager[RangeContent]:
        """The rows of the range. If reading fails, the context raises, and none of the rows may be used."""

    def numbers(self, tables: SparkTables, dataset: DatasetUuid, rows: SeqRange) -> AbstractContextManager[DataFrame]:
        """The sequence numbers of the range that the leader still has."""

    def bodies(self, dataset: DatasetUuid, batch_id: str) -> AnnouncedBatch | None:
        """The bodies in a received batch that is in the leader's table. None if the leader does not know them, or has a
        version without this request."""

    def acknowledge(self, progress: Acknowledgement) -> None:
        """Reports to the leader how far the follower is, and which site it is."""

    def close(self) -> None: ...
