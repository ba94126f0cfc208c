"""A follower with access to its leader's ledger, catalog and warehouse: it reads the ledger itself, and Spark reads the
leader's tables. It writes there only how far the follower is, and that a table may have been rolled back.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.errors import FailedError, RefusedError, TableRolledBack
from strandline.core.roles import Role, allows
from strandline.core.settings.lake_config import LakeConfig, load_config
from strandline.core.types import INTERNAL_COLUMNS, SEQ_COLUMN, Dataset, DatasetUuid, Seq, SeqRange
from strandline.iceberg.metadata.identifier import in_spark, quoted
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.session import spark_internals
from strandline.iceberg.session.lake_session import open_session
from strandline.iceberg.spark.java_errors import explaining
from strandline.iceberg.spark.tables import SparkTables
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.receive import tokens
from strandline.ledger.receive.announced_bodies import AnnouncedBatch
from strandline.ledger.receive.tokens import Token
from strandline.ledger.replicate import followers, sites
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.read.settled_view import check_table
from strandline.replicate.follow.schema_plan import FIELDS_PROPERTY
from strandline.replicate.lead.leader import Leader
from strandline.replicate.source import LeaderAnswer, LeaderSite, RangeContent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog


class SharedSource:
    """`token`: from `strandline follower add` at the leader. Without one, the leader does not know how far the follower
    is."""

    def __init__(self, settings_file: Path, *, token: str | None) -> None:
        self._config: LakeConfig = load_config(settings_file)
        self._ledger = Ledger(self._config)
        self._ledger.open()
        self._token = token
        self._leader = Leader(self.site().lake, self._ledger, self)
        self._opened: PyIcebergCatalog | None = None
        self._tables: SparkTables | None = None
        self._opening = threading.Lock()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._ledger.close()

    @property
    def catalog(self) -> PyIcebergCatalog:
        """The leader's."""
        from strandline.iceberg.pyiceberg.catalog import open_catalog

        with self._opening:
            if self._opened is None:
                self._opened = open_catalog(self._config)
            return self._opened

    def _leaders_tables(self) -> SparkTables:
        """In a Spark session of its own, in which the catalog `lake` is the leader's."""
        with self._opening:
            if self._tables is None:
                attempts = self._config.settings.ingest.commit_attempts_max
                self._tables = SparkTables(open_session(self._config, check_pages=True), attempts_max=attempts)
            return self._tables

    def site(self) -> LeaderSite:
        with self._ledger.read() as connection:
            found = None if self._token is None else tokens.find(connection, self._token)
            known = None if found is None else followers.of_token(connection, found.owner)
            number = None if known is None else known.site_number
            return LeaderSite(sequence.read(connection).lake, sites.get(connection).term, number)

    def poll(
        self, after: Mapping[DatasetUuid, Seq], *, items_max: int, sinks_version: str | None = None
    ) -> LeaderAnswer:
        return self._leader.poll(after, items_max=items_max, only=self._allowed, sinks_version=sinks_version)

    @contextmanager
    def content(self, tables: SparkTables, dataset: DatasetUuid, rows: SeqRange) -> Iterator[RangeContent]:
        known = self._find(dataset)
        theirs = self._check(known, rows)
        view = theirs.view(known.name)
        fields = [f for f in view.schema["fields"] if f["name"] not in INTERNAL_COLUMNS]
        with explaining(f"the leader's rows of {known.name} cannot be read"):
            frame = theirs.spark.table(in_spark(known.name))
            if {f["name"] for f in fields} != {c for c in frame.columns if c not in INTERNAL_COLUMNS}:
                raise _columns_changed(known)
            inside = frame.where(f"{SEQ_COLUMN} BETWEEN {rows.lo} AND {rows.hi}")
            found = _over(tables, inside)
        former = view.properties.get(FIELDS_PROPERTY)
        self._check_unchanged(known, theirs, view)
        yield RangeContent(fields, lambda schema: found.select(*(quoted(name) for name in schema.names)), former)
        # Spark reads the table's metadata again when the caller uses the frame.
        self._check_unchanged(known, theirs, view)

    @contextmanager
    def numbers(self, tables: SparkTables, dataset: DatasetUuid, rows: SeqRange) -> Iterator[DataFrame]:
        known = self._find(dataset)
        frame = self._check(known, rows).spark.table(in_spark(known.name)).select(SEQ_COLUMN)
        with explaining(f"the leader's rows of {known.name} cannot be read"):
            inside = frame.where(f"{SEQ_COLUMN} BETWEEN {rows.lo} AND {rows.hi}")
            # A frame over the RDD: in a DELETE through a view, Spark would resolve the plan again by the table's name,
            # and both sites have a table of this name.
            found = spark_internals.frame_over(tables.spark, spark_internals.query_execution(inside).toRdd(), inside)
        self._ledger.query(sites.check_offers)  # the RDD has its files by now
        yield found

    def _check(self, known: Dataset, rows: SeqRange) -> SparkTables:
        """Makes the checks that the leader itself makes before it sends rows, and returns its tables."""
        tables = self._leaders_tables()
        try:
            check_table(self._ledger, tables, self._leader.lake_id, known, settled_to=rows.hi)
        except TableRolledBack as e:
            raise TableRolledBack(f"at the leader: {e.message}", hint=e.hint) from e
        return tables

    def _check_unchanged(self, known: Dataset, theirs: SparkTables, planned: TableView) -> None:
        """Raises NotLeader if the site follows by now: it may have removed rows of the range. Raises FailedError if the
        table has other columns than `planned`."""
        self._ledger.query(sites.check_offers)
        if theirs.view(known.name).schema_id != planned.schema_id:
            raise _columns_changed(known)

    def bodies(self, dataset: DatasetUuid, batch_id: str) -> AnnouncedBatch | None:
        return self._leader.bodies(self._find(dataset), batch_id)

    def acknowledge(self, progress: Acknowledgement) -> None:
        if self._token is not None:
            token = self._ledger.query(self._check_token, self._token)
            self._leader.acknowledge(token.owner, progress)

    def _find(self, dataset: DatasetUuid) -> Dataset:
        return self._leader.find(dataset, only=self._ledger.query(self._allowed))

    def _allowed(self, connection: Connection) -> Collection[str] | None:
        """The datasets that the follower may see, as over HTTP; None: all."""
        return None if self._token is None else self._check_token(connection, self._token).datasets

    @staticmethod
    def _check_token(connection: Connection, secret: str) -> Token:
        """Raises RefusedError for a token that the leader's API would refuse."""
        found = tokens.find(connection, secret)
        if found is None:
            raise RefusedError("the leader does not know this follower's token, or has revoked it", hint=_NEW_TOKEN)
        if not allows(found.role, Role.REPLICATE):
            raise RefusedError(f"this token has the role {found.role} at the leader, not a follower's", hint=_NEW_TOKEN)
        return found


_NEW_TOKEN = (
    "`strandline follower add NAME` at the leader makes one; name it with "
    "`strandline follow init LEADER --token env:NAME`."
)


def _columns_changed(known: Dataset) -> FailedError:
    return FailedError(
        f"the columns of {known.name} were changed at the leader just now", hint="The follower tries again."
    )


def _over(tables: SparkTables, frame: DataFrame) -> DataFrame:
    """The same rows as a frame of the follower's session, so that they are written to the follower's catalog."""
    return spark_internals.frame_in(tables.spark, frame)
